import replicate
from given import account, client, models, raises, said_all

writer = models.writer
owner, name = writer.name.split("/")

me = client.account.get()
assert (me.type, me.username) == ("organization", account)

model = client.models.get(model_owner=owner, model_name=name)
assert (model.owner, model.name, model.latest_version.id) == (owner, name, writer.version)
assert [version.id for version in client.models.versions.list(model_owner=owner, model_name=name)] == [writer.version]
version = client.models.versions.get(model_owner=owner, model_name=name, version_id=writer.version)
assert version.openapi_schema["components"]["schemas"]["Output"]["x-cog-array-type"] == "iterator"

wanted = {"owner": account, "name": "sculptor", "visibility": "private", "hardware": "cpu"}
made = client.models.create(**wanted, description="It sculpts marble.")
assert (made.owner, made.name, made.visibility, made.latest_version) == (account, "sculptor", "private", None)
taken = raises(replicate.APIStatusError, lambda: client.models.create(**wanted))
assert taken.status_code == 409
theirs = {"model_owner": account, "model_name": "sculptor"}
assert client.models.update(**theirs, readme="# Marble", description="It sculpts.").description == "It sculpts."
assert client.models.readme.get(**theirs) == "# Marble"
assert list(client.models.examples.list(**theirs)) == []
assert "sculptor" in [one.name for one in client.models.list(sort_by="model_created_at", sort_direction="asc")]
assert [one.name for one in client.models.search(body="marble")] == ["sculptor"]
found = client.search(query="marble")
assert [one.model.name for one in found.models] == ["sculptor"]
client.models.delete(**theirs)
raises(replicate.NotFoundError, lambda: client.models.get(**theirs))

assert "cpu" in [hardware.sku for hardware in client.hardware.list()]
assert [collection.slug for collection in client.collections.list()] == ["best"]
assert [one.name for one in client.collections.get(collection_slug="best").models] == [name]
said_all()
