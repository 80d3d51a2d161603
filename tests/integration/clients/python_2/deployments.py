import replicate
from given import account, client, models, raises, said_all

captioner = models.captioner
theirs = {"deployment_owner": account, "deployment_name": "captions"}

made = client.deployments.create(
    name="captions", model=captioner.name, version=captioner.version, hardware="cpu", min_instances=0, max_instances=1
)
assert (made.owner, made.name, made.current_release.number) == (account, "captions", 1)
changed = client.deployments.update(**theirs, max_instances=2)
assert (changed.current_release.number, changed.current_release.configuration.max_instances) == (2, 2)
assert client.deployments.get(**theirs) == client.deployments.get(**theirs)
assert [deployment.name for deployment in client.deployments.list()] == ["captions"]
prediction = client.deployments.predictions.create(**theirs, input={"prompt": "by a release"}, prefer="wait")
assert (prediction.status, prediction.output, prediction.deployment) == (
    "succeeded",
    "by a release",
    f"{account}/captions",
)
client.deployments.delete(**theirs)
raises(replicate.NotFoundError, lambda: client.deployments.get(**theirs))
said_all()
