"""RESULT is the value of the expression in WHAT, or the exception that it raises."""

import sys  # noqa: F401 - for the expressions

import numpy as np
import triton_python_backend_utils as pb_utils


def evaluate(expression, request):
    names = {**globals(), "request": request, "zeros": np.zeros(1, dtype=np.float32)}
    try:
        return repr(eval(expression, names))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def call(model, **options):
    """Returns a BLS request to a model."""
    text = pb_utils.Tensor("WHAT", np.array([b"1 + 1"], dtype=np.object_))
    return pb_utils.InferenceRequest(
        **{
            "model_name": model,
            "requested_output_names": ["RESULT"],
            "inputs": [text],
            **options,
        }
    )


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "WHAT").as_numpy()[0].decode()
        result = np.array([evaluate(what, request)], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", result)])
