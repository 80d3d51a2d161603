import httpx
import replicate
from given import account, client, gate, models, open_gate, raises, said_all, terminal

owner, name = models.trainer.name.split("/")
trained = {"model_owner": owner, "model_name": name, "version_id": models.trainer.version}
destination = f"{account}/tuned"


def ended(training_id: str) -> replicate.types.TrainingGetResponse:
    while not terminal(seen := client.trainings.get(training_id=training_id)):
        pass
    return seen


client.models.create(owner=account, name="tuned", visibility="private", hardware="cpu")
given = {"input_images": "https://my-domain/images.zip", "token_string": "TOK", "gate": gate}
training = client.trainings.create(**trained, destination=destination, input=given)
assert training.status == "starting"
open_gate()
done = ended(training.id)
assert (done.status, done.error) == ("succeeded", None)
[version] = client.models.versions.list(model_owner=account, model_name="tuned")
assert done.output.version == f"{destination}:{version.id}"
assert httpx.get(done.output.weights).content == b"TOK"

stopped = client.trainings.create(**trained, destination=destination, input={"gate": f"{gate}.never"})
client.trainings.cancel(training_id=stopped.id)
assert ended(stopped.id).status == "canceled"
assert [one.id for one in client.trainings.list()] == [stopped.id, training.id]
astray = raises(
    replicate.NotFoundError,
    lambda: client.trainings.create(**trained, destination=f"{account}/missing", input={}),
)
assert "destination does not exist" in astray.body["detail"]
said_all()
