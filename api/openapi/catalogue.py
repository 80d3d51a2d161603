"""Models, their versions, deployments, collections, hardware and search."""

from typing import Annotated, Final

from msgspec import Meta, Raw

from api.models.collections import MOST_FOUND, CollectionView, Hardware, SearchResults, WholeCollection
from api.models.deployments import DeploymentView
from api.models.model_views import ModelView, VersionView, WholeVersionView
from api.models.models import DIRECTIONS, ORDERS
from api.openapi.bodies import DeploymentChange, ModelChange, NewDeployment, NewModel
from api.openapi.operation import (
    BODY,
    HOST,
    NO_BODY,
    PAGED,
    PATH,
    TOKEN,
    Answer,
    Body,
    Operation,
    Operations,
    Parameter,
)
from api.openapi.parameters import CURSOR, MODEL, SLUG_OF_COLLECTION, VERSION_OF_MODEL, one_of
from director.core.schema import Page

TEXT: Final = "text/plain"

MODELS: Final[Operations] = {
    ("GET", "/models"): Operation(
        name="models.list",
        what="List the public models and the account's own",
        scopes=("read",),
        parameters=(
            CURSOR,
            Parameter("sort_by", "In which order.", one_of(*ORDERS)),
            Parameter("sort_direction", "From which end.", one_of(*DIRECTIONS)),
        ),
        answers={200: Answer("A page.", Page[ModelView])},
        refusals=TOKEN | PAGED,
    ),
    ("POST", "/models"): Operation(
        name="models.create",
        what="Make a model",
        scopes=("run",),
        body=Body(NewModel),
        answers={201: Answer("The model, which has no version yet.", ModelView)},
        refusals=TOKEN | BODY | {404, 409},
    ),
    ("QUERY", "/models"): Operation(
        name="models.search",
        what="Search models by words",
        scopes=("read",),
        body=Body(str, TEXT),
        answers={200: Answer("The best matches first.", Page[ModelView])},
        refusals=TOKEN | HOST | {408, 413},
    ),
    ("GET", "/models/{owner}/{name}"): Operation(
        name="models.get",
        what="Get a model, with its latest version",
        scopes=("read",),
        parameters=MODEL,
        answers={200: Answer("The model.", ModelView)},
        refusals=TOKEN | HOST | PATH,
    ),
    ("PATCH", "/models/{owner}/{name}"): Operation(
        name="models.update",
        what="Change what is said of a model",
        scopes=("run",),
        parameters=MODEL,
        body=Body(ModelChange),
        answers={200: Answer("The model as it is then.", ModelView)},
        refusals=TOKEN | BODY | PATH,
    ),
    ("DELETE", "/models/{owner}/{name}"): Operation(
        name="models.delete",
        what="Delete a private model that has no versions",
        scopes=("run",),
        parameters=MODEL,
        answers={204: NO_BODY},
        refusals=TOKEN | PATH | {422},
    ),
    ("GET", "/models/{owner}/{name}/readme"): Operation(
        name="models.readme.get",
        what="Get the readme of a model",
        scopes=("read",),
        parameters=MODEL,
        answers={200: Answer("The text.", str, TEXT)},
        refusals=TOKEN | PATH,
    ),
    ("GET", "/models/{owner}/{name}/examples"): Operation(
        name="models.examples.list",
        what="List predictions that operators chose as examples of a model",
        scopes=("read",),
        parameters=(*MODEL, CURSOR),
        answers={200: Answer("A page of predictions as they were then, newest first.", Page[Raw])},
        refusals=TOKEN | PAGED | PATH,
    ),
    ("GET", "/models/{owner}/{name}/versions"): Operation(
        name="models.versions.list",
        what="List the versions of a model",
        scopes=("read",),
        parameters=(*MODEL, CURSOR),
        answers={200: Answer("A page, newest first.", Page[VersionView])},
        refusals=TOKEN | PAGED | PATH,
    ),
    ("GET", "/models/{owner}/{name}/versions/{id}"): Operation(
        name="models.versions.get",
        what="Get a version, with its schema",
        scopes=("read",),
        parameters=VERSION_OF_MODEL,
        answers={200: Answer("The version, with how the last setup of a server of it went.", WholeVersionView)},
        refusals=TOKEN | PATH,
    ),
    ("DELETE", "/models/{owner}/{name}/versions/{id}"): Operation(
        name="models.versions.delete",
        what="Delete a version that nobody needs",
        scopes=("run",),
        parameters=VERSION_OF_MODEL,
        answers={202: NO_BODY},
        refusals=TOKEN | PATH | {422},
    ),
}

DEPLOYMENTS: Final[Operations] = {
    ("GET", "/deployments"): Operation(
        name="deployments.list",
        what="List the deployments of the account",
        scopes=("read",),
        parameters=(CURSOR,),
        answers={200: Answer("A page, newest first.", Page[DeploymentView])},
        refusals=TOKEN | PAGED,
    ),
    ("POST", "/deployments"): Operation(
        name="deployments.create",
        what="Make a deployment",
        scopes=("run",),
        body=Body(NewDeployment),
        answers={200: Answer("The deployment, with its first release.", DeploymentView)},
        refusals=TOKEN | BODY,
    ),
    ("GET", "/deployments/{owner}/{name}"): Operation(
        name="deployments.get",
        what="Get a deployment",
        scopes=("read",),
        parameters=MODEL,
        answers={200: Answer("The deployment.", DeploymentView)},
        refusals=TOKEN | PATH,
    ),
    ("PATCH", "/deployments/{owner}/{name}"): Operation(
        name="deployments.update",
        what="Release another version, or on other hardware",
        scopes=("run",),
        parameters=MODEL,
        body=Body(DeploymentChange),
        answers={200: Answer("The deployment as it is then.", DeploymentView)},
        refusals=TOKEN | BODY | PATH,
    ),
    ("DELETE", "/deployments/{owner}/{name}"): Operation(
        name="deployments.delete",
        what="Delete a deployment",
        scopes=("run",),
        parameters=MODEL,
        answers={204: NO_BODY},
        refusals=TOKEN | PATH,
    ),
}

FINDING: Final[Operations] = {
    ("GET", "/collections"): Operation(
        name="collections.list",
        what="List collections of models",
        scopes=("read",),
        parameters=(CURSOR,),
        answers={200: Answer("A page, by slug.", Page[CollectionView])},
        refusals=TOKEN | PAGED,
    ),
    ("GET", "/collections/{slug}"): Operation(
        name="collections.get",
        what="Get a collection, with its models",
        scopes=("read",),
        parameters=SLUG_OF_COLLECTION,
        answers={200: Answer("The collection.", WholeCollection)},
        refusals=TOKEN | HOST | PATH,
    ),
    ("GET", "/hardware"): Operation(
        name="hardware.list",
        what="List kinds of hardware",
        scopes=("read",),
        answers={200: Answer("All of them.", list[Hardware])},
        refusals=TOKEN,
    ),
    ("GET", "/search"): Operation(
        name="search",
        what="Search models and collections by words",
        scopes=("read",),
        parameters=(
            Parameter("query", "The words; 400 without."),
            Parameter("limit", "At most so many models; 20 without.", Annotated[int, Meta(ge=1, le=MOST_FOUND)]),
        ),
        answers={200: Answer("The best matches first.", SearchResults)},
        refusals=TOKEN | HOST | {422},
    ),
}

CATALOGUE: Final[Operations] = {**MODELS, **DEPLOYMENTS, **FINDING}
