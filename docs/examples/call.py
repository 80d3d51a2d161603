"""Run a model with Replicate's own client for Python. Needs: pip install 'replicate<2'

python call.py [MODEL]
"""

import os
import sys

import replicate

client = replicate.Client(
    api_token=os.environ["REPLICATE_API_TOKEN"],
    base_url=os.environ.get("REPLICATE_BASE_URL", "http://127.0.0.1:8080"),
)
model = sys.argv[1] if len(sys.argv) > 1 else "example/hello"
try:
    output = client.run(model, input={"text": "hello", "n": 3})
except replicate.exceptions.ModelError as error:
    sys.exit(f"The model failed: {error.prediction.error}")
print("".join(output), end="")
