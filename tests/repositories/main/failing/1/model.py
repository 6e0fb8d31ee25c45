"""Every way in which an execute can go wrong, chosen by the KIND input; unknown kinds answer
well."""

import numpy as np
import triton_python_backend_utils as pb_utils


def good():
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))])


def failure(message, code=None):
    error = (
        pb_utils.TritonError(message)
        if code is None
        else pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
    )
    return pb_utils.InferenceResponse(error=error)


def raise_value_error():
    raise ValueError("boom")


def raise_model_exception():
    raise pb_utils.TritonModelException("the model says no")


def raise_without_words():
    raise KeyError


RESULTS = {
    "raise": raise_value_error,
    "raise model exception": raise_model_exception,
    "raise without words": raise_without_words,
    "exit": lambda: exit(3),
    "error": lambda: [failure("refused by the model")],
    "error with outputs": lambda: [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.ones(1, np.int32))],
            error=pb_utils.TritonError("outputs and an error"),
        )
    ],
    "empty error": lambda: [failure("")],
    "none": lambda: None,
    "not a list": lambda: "text",
    "too many": lambda: [good(), good()],
    "too few": list,
    "not a response": lambda: [7],
    "none in the list": lambda: [None],
    "unknown output": lambda: [
        pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.ones(1, np.int32))])
    ],
    "no outputs": lambda: [pb_utils.InferenceResponse([])],
    "wrong type": lambda: [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float64))])
    ],
    "wrong shape": lambda: [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones((2, 2), np.int32))])
    ],
    "type without a name": lambda: [
        pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.complex64))])
    ],
    "tensor of a list": lambda: [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", [1])])],
}
CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)


class TritonPythonModel:
    def execute(self, requests):
        kind = pb_utils.get_input_tensor_by_name(requests[0], "KIND").as_numpy()[0].decode()
        if kind in CODES:
            return [failure(f"coded {kind}", kind)]
        return RESULTS[kind]() if kind in RESULTS else [good() for _ in requests]
