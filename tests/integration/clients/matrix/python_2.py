"""Try each feature of the Python client 2."""

import io
import time

import httpx
import replicate
from given import account, captioner, gate, painter, pieces, show, trainer, writer
from replicate.exceptions import ModelError

client = replicate.Replicate()


def ended(look):
    while (seen := look()).status in ("starting", "processing"):
        time.sleep(0.05)  # it runs where our helpers are missing
    return seen


def run():
    assert list(client.run(writer["ref"], input={"prompt": "llamas"})) == pieces
    assert client.run(captioner["ref"], input={"prompt": "hi"}) == "hi"


def predictions():
    made = client.predictions.create(version=writer["version"], input={"prompt": "llamas"})
    done = client.predictions.wait(made.id)
    assert (done.status, done.output) == ("succeeded", pieces), done
    assert client.predictions.get(prediction_id=made.id).status == "succeeded"
    assert made.id in [one.id for one in client.predictions.list()]


def cancel():
    made = client.predictions.create(version=captioner["version"], input={"gate": gate + ".never"})
    while client.predictions.get(prediction_id=made.id).status == "starting":
        pass
    client.predictions.cancel(prediction_id=made.id)
    assert client.predictions.wait(made.id).status == "canceled"


def failure():
    try:
        client.run(captioner["ref"], input={"then": "raise"})
    except ModelError as error:
        assert "it went wrong" in str(error), repr(error)
    else:
        raise AssertionError("no error was raised")


def stream():
    said = [str(event) for event in client.stream(writer["ref"], input={"prompt": "llamas"})]
    assert "".join(said) == "".join(pieces), said


def files():
    assert client.run(captioner["ref"], input={"image": io.BytesIO(b"a cat")}) == "a cat"
    first, second = client.run(painter["ref"], input={"prompt": "a raccoon"})
    assert (first.read(), second.read()) == (b"a raccoon0", b"a raccoon1")


def trainings():
    owner, name = trainer["name"].split("/")
    path = {"model_owner": owner, "model_name": name, "version_id": trainer["version"]}

    def create(**asked):
        return client.trainings.create(**path, destination=account + "/tuned", input=asked).id

    def end_of(training_id):
        return ended(lambda: client.trainings.get(training_id=training_id))

    done = end_of(create(token_string="TOK"))
    assert httpx.get(done.output.weights).content == b"TOK"
    stopped = create(gate=gate + ".never")
    client.trainings.cancel(training_id=stopped)
    assert end_of(stopped).status == "canceled"


def models_and_versions():
    owner, name = writer["name"].split("/")
    versions = client.models.versions.list(model_owner=owner, model_name=name)
    assert [version.id for version in versions] == [writer["version"]]


def deployments():
    theirs = {"deployment_owner": account, "deployment_name": "captions"}
    made = client.deployments.predictions.create(**theirs, input={"prompt": "by a release"}, prefer="wait")
    assert (made.status, made.output) == ("succeeded", "by a release"), made


show(run, predictions, cancel, failure, stream, files, trainings, models_and_versions, deployments)
