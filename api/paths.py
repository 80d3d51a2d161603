"""What a path names. What cannot be an id is answered without asking Redis."""

from starlette.requests import Request

from api.refusals import not_found
from director.core.ids import PredictionId, is_prediction_id

__all__ = ("prediction_id_of",)


def prediction_id_of(request: Request) -> PredictionId:
    """The prediction of this path; 404 where that is no id."""
    text = request.path_params["id"]
    if not is_prediction_id(text):
        raise not_found()
    return PredictionId(text)
