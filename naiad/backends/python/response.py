"""`pb_utils.InferenceResponse`: outputs or an error, and parameters.

In:  responses that a model returns or sends; WorkResponses of BLS calls.
Out: WorkResponses with the requested outputs only. As in Triton, other outputs are dropped
     silently.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from naiad.backends.python.error import (
    TritonError,
    TritonModelException,
    decode_error,
    encode_error,
    signature_error,
)
from naiad.backends.python.parameters import Parameters, check_parameters, encode_parameters
from naiad.backends.python.tensor import Tensor, encode_tensor, received_tensor
from naiad.ipc.work import WorkResponse


class InferenceResponse:
    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Any = None,
    ) -> None:
        if not isinstance(output_tensors, (list, tuple)) or (
            error is not None and not isinstance(error, TritonError)
        ):
            raise _signature_error(output_tensors, error, parameters)
        for tensor in output_tensors:
            if not isinstance(tensor, Tensor):
                if tensor is None:
                    raise TritonModelException(
                        "Output tensor for inference response should not be empty."
                    )
                raise _signature_error(output_tensors, error, parameters)
        self._outputs: Sequence[Tensor] = output_tensors
        self._error = error
        self._parameters: Parameters | None = (
            None if parameters is None else check_parameters(parameters)
        )

    def output_tensors(self) -> list[Tensor]:
        return list(self._outputs)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return encode_parameters(self._parameters or {})


def _signature_error(*arguments: object) -> TypeError:
    signature = (
        "InferenceResponse(output_tensors: List[Tensor] = [], error: TritonError = None, "
        "parameters: dict = None)"
    )
    return signature_error(signature, *arguments)


def decode_response(response: WorkResponse) -> InferenceResponse:
    error = None if response.error is None else decode_error(response.error)
    decoded = InferenceResponse([received_tensor(tensor) for tensor in response.outputs], error)
    decoded._parameters = response.parameters
    return decoded


def encode_response(response: InferenceResponse, output_names: Collection[str]) -> WorkResponse:
    """Raises TritonModelException if an output cannot be read."""
    if response._error is not None:
        return WorkResponse([], encode_error(response._error), response._parameters or {})
    outputs = [
        encode_tensor(tensor) for tensor in response._outputs if tensor._name in output_names
    ]
    if response._parameters is None:
        return WorkResponse(outputs)
    return WorkResponse(outputs, None, response._parameters)
