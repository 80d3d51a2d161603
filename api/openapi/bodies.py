"""Bodies that their readers take apart member by member, written down as types.

Described here and judged there: nothing is decoded into these. Where a reader decodes a type, that one is described.
"""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from api.bodies import MAX_FILTER
from api.models.models import MOST_URL, SKU, TEXTS
from director.core.ids import MODEL_NAME, VERSION_ID
from director.core.states import WebhookEvent
from director.store.models import Visibility

Name = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")]
Hardware = Annotated[str, Meta(pattern=f"^{SKU.pattern}$")]
Url = Annotated[str, Meta(max_length=MOST_URL, description="http or https.")] | None
Description = Annotated[str, Meta(max_length=TEXTS["description"])] | None
Version = Annotated[str, Meta(pattern=VERSION_ID)]
MinInstances = Annotated[int, Meta(ge=0, le=5)]
MaxInstances = Annotated[int, Meta(ge=0, le=20)]
FILE = Meta(extra_json_schema={"format": "binary", "contentMediaType": "application/octet-stream"})
NO_EFFECT = Meta(description="Has no effect.", extra_json_schema={"deprecated": True})


class PredictionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is to be run. No filter means every webhook event."""

    input: dict[str, Any]
    webhook: Annotated[str, Meta(description="An http or https URL.")] | None = None
    webhook_events_filter: Annotated[list[WebhookEvent], Meta(max_length=MAX_FILTER)] | None = None
    stream: Annotated[bool | None, NO_EFFECT] = None
    webhook_completed: Annotated[str | None, NO_EFFECT] = None


class VersionPredictionRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """What is to be run, and of which version: `owner/name`, `owner/name:<64 hex digits>` or the 64 digits alone."""

    version: str


class TrainingRequest(PredictionRequest, kw_only=True, forbid_unknown_fields=True):
    """A training, and the model `owner/name` that it makes a version of."""

    destination: str


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Up to a thousand bodies of predictions, each judged by itself."""

    predictions: Annotated[list[Any], Meta(min_length=1, max_length=1_000)]


class NewModel(Struct, kw_only=True, forbid_unknown_fields=True):
    """A model without a version: a director brings it one. `owner`: the caller's own account."""

    owner: Name
    name: Name
    visibility: Visibility
    hardware: Hardware
    description: Description = None
    github_url: Url = None
    paper_url: Url = None
    license_url: Url = None
    cover_image_url: Url = None


class ModelChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is said of a model from now on; '' takes back what was."""

    description: Description = None
    readme: Annotated[str, Meta(max_length=TEXTS["readme"])] | None = None
    github_url: Url = None
    paper_url: Url = None
    weights_url: Url = None
    license_url: Url = None


class DeploymentChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """A new release, if it changes anything."""

    version: Version | None = None
    hardware: Hardware | None = None
    min_instances: MinInstances | None = None
    max_instances: MaxInstances | None = None


class NewDeployment(Struct, kw_only=True, forbid_unknown_fields=True):
    """A name for a version, and what it runs on."""

    name: Name
    model: Annotated[str, Meta(pattern=MODEL_NAME)]
    version: Version
    hardware: Hardware
    min_instances: MinInstances
    max_instances: MaxInstances


class FileUpload(Struct, kw_only=True):
    """The parts of a form. `content` is the file; the others may stand before or after it."""

    content: Annotated[str, FILE]
    filename: Annotated[str, Meta(description="At most 255 bytes.")] | UnsetType = UNSET
    type: Annotated[str, Meta(description="A media type; application/octet-stream without.")] | UnsetType = UNSET
    metadata: Annotated[str, Meta(description="A JSON object.")] | UnsetType = UNSET
