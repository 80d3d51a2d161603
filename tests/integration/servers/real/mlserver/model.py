"""A model behind MLServer: `mlserver start FOLDER`."""

import time

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Up(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        [text] = StringCodec.decode_input(payload.inputs[0])
        if text.startswith("wait"):
            time.sleep(float(text.split()[1]))  # noqa: ASYNC251 - models mostly compute
        if text == "boom":
            raise ValueError("no booms here")
        return InferenceResponse(model_name=self.name, outputs=[StringCodec.encode_output("said", [text.upper()])])
