"""Whatever typed inputs a request brings come back under OUT_<datatype>. BF16 has no numpy type and
travels by DLPack."""

import triton_python_backend_utils as pb_utils


def same(tensor):
    name = tensor.name().replace("IN_", "OUT_")
    if name == "OUT_BF16":
        return pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack())
    return pb_utils.Tensor(name, tensor.as_numpy())


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([same(tensor) for tensor in request.inputs()])
            for request in requests
        ]
