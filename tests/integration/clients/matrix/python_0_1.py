"""Try each feature that this version of the Python client has, 0.8 to 1.0."""

import io
import os
import ssl
import time
import urllib.request

import replicate
from given import account, captioner, gate, given, painter, pieces, show, trainer, writer

client = replicate.Client(api_token=given["token"])


def version_of(model):
    return client.models.get(model["name"]).versions.get(model["version"])


def ended(run):
    while run.status in ("starting", "processing"):
        time.sleep(0.05)  # it runs where our helpers are missing
        run.reload()
    return run


def content(file):
    if hasattr(file, "read"):
        return file.read()
    context = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
    return urllib.request.urlopen(file, context=context).read()


def run():
    assert list(client.run(writer["ref"], input={"prompt": "llamas"})) == pieces
    assert client.run(captioner["ref"], input={"prompt": "hi"}) == "hi"


def predictions():
    made = client.predictions.create(version=version_of(writer), input={"prompt": "llamas"})
    made.wait()
    assert (made.status, made.output) == ("succeeded", pieces), made
    got = client.predictions.get(made.id)
    assert (got.status, got.output, got.input) == ("succeeded", pieces, {"prompt": "llamas"}), got
    assert made.id in [one.id for one in client.predictions.list()]


def cancel():
    made = client.predictions.create(version=version_of(captioner), input={"gate": gate + ".never"})
    while made.status != "processing":
        made.reload()
    made.cancel()
    assert ended(made).status == "canceled", made


def failure():
    try:
        client.run(captioner["ref"], input={"then": "raise"})
    except Exception as error:
        assert type(error).__name__ == "ModelError", repr(error)
        assert "it went wrong" in str(error), repr(error)
    else:
        raise AssertionError("no error was raised")


def stream():
    assert "".join(str(event) for event in client.stream(writer["ref"], input={"prompt": "llamas"})) == "".join(pieces)


def files():
    picture = io.BytesIO(b"a cat")
    picture.name = "cat.png"
    assert client.run(captioner["ref"], input={"image": picture}) == "a cat"
    first, second = client.run(painter["ref"], input={"prompt": "a raccoon"})
    assert (content(first), content(second)) == (b"a raccoon0", b"a raccoon1")


def trainings():
    asked = {"version": trainer["ref"], "destination": account + "/tuned"}
    done = ended(client.trainings.create(input={"token_string": "TOK"}, **asked))
    assert done.status == "succeeded", done
    assert content(done.output["weights"]) == b"TOK"
    stopped = client.trainings.create(input={"gate": gate + ".never"}, **asked)
    stopped.cancel()
    assert ended(stopped).status == "canceled", stopped


def models_and_versions():
    model = client.models.get(writer["name"])
    assert [version.id for version in model.versions.list()] == [writer["version"]]
    assert model.versions.get(writer["version"]).id == writer["version"]


def deployments():
    made = client.deployments.get(account + "/captions").predictions.create(input={"prompt": "by a release"})
    assert (ended(made).status, made.output) == ("succeeded", "by a release"), made


missing = [name for name in ("stream", "deployments", "trainings") if not hasattr(client, name)]
show(run, predictions, cancel, failure, stream, files, trainings, models_and_versions, deployments, missing=missing)
