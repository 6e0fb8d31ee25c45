"""A custom MLServer runtime around an onnxruntime session. `mlserver start` runs it in the
environment of the peers."""

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(self.settings.parameters.extra["threads"])
        self.session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        arrays = {entry.name: NumpyCodec.decode_input(entry) for entry in payload.inputs}
        outputs = self.session.run(None, arrays)
        names = [node.name for node in self.session.get_outputs()]
        encoded = [
            NumpyCodec.encode_output(name, value)
            for name, value in zip(names, outputs, strict=True)
        ]
        return InferenceResponse(model_name=self.name, outputs=encoded)
