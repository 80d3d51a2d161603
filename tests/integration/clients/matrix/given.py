"""Give the scripts of the Python clients their account and models, and print how each feature went.

They run in environments of the clients, which have no package of ours.
"""

import json
import os

given = json.loads(os.environ["GIVEN"])
account, gate, models = given["account"], given["gate"], given["models"]
writer, captioner, painter, trainer = (models[name] for name in ("writer", "captioner", "painter", "trainer"))
pieces = ["About ", "llamas", "."]


def told(feature):
    try:
        feature()
    except Exception as error:  # each is a cell of the table
        return f"{type(error).__name__}: {error}"[:300]
    return "yes"


def show(*features, missing=()):
    """Print a JSON object: feature → how it went. The client has nothing for a `missing` feature."""
    print(json.dumps({each.__name__: "–" if each.__name__ in missing else told(each) for each in features}))
