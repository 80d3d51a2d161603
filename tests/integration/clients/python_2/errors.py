import replicate
from given import client, models, raises, said_all

wrong = raises(
    replicate.UnprocessableEntityError,
    lambda: client.predictions.create(version=models.captioner.version, input={"prompt": 7}),
)
assert wrong.status_code == 422
assert wrong.body["title"] == "Input validation failed"
assert wrong.body["invalid_fields"][0]["field"] == "input.prompt"
unknown = raises(replicate.UnprocessableEntityError, lambda: client.predictions.create(version="f" * 64, input={}))
assert unknown.body["title"] == "Invalid version or not permitted"
assert raises(replicate.NotFoundError, lambda: client.predictions.get(prediction_id="x" * 26)).status_code == 404
assert raises(replicate.NotFoundError, lambda: client.models.get(model_owner="other", model_name="nothing"))
stranger = replicate.Replicate(bearer_token="r8_wrong")
assert raises(replicate.AuthenticationError, stranger.account.get).status_code == 401
said_all()
