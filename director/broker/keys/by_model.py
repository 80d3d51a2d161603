"""How the keys of the catalogue are spelled: models, their versions and what is shown of them."""

from typing import Literal

__all__ = (
    "collection",
    "collections",
    "examples",
    "hardware",
    "model",
    "models",
    "version",
    "versions",
)


def model(name: str) -> str:
    """hash · a model of the catalogue: what is said of it. By registration, amend and withdraw. Permanent."""
    return f"model:{name}"


def models(order: Literal["created", "latest"]) -> str:
    """zset · every model → when it, or its latest version, was made, ms. By whoever makes a model or a version.

    May name one that is gone. Permanent.
    """
    return f"models:{order}"


def collection(slug: str) -> str:
    """string · a collection of models as JSON. Written by operators. Permanent."""
    return f"collection:{slug}"


def collections() -> str:
    """set · every collection. May name one that is gone. Written by operators. Permanent."""
    return "collections"


def hardware() -> str:
    """hash · SKU → name of the hardware that there is. Written by operators. Permanent."""
    return "hardware"


def examples(model: str) -> str:
    """hash · id → a prediction of a model as JSON, to be shown with it. Written by operators. Permanent."""
    return f"examples:{model}"


def version(name: str, version_id: str) -> str:
    """hash · one version of a model with its OpenAPI document. Written at registration. Permanent."""
    return f"version:{name}:{version_id}"


def versions() -> str:
    """hash · version id → model, for callers that name the version alone. Permanent."""
    return "versions"
