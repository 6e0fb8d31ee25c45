"""`pb_utils.InferenceResponseSender`: responds to one request, from any thread and at any time.

A decoupled model may send any number of responses and ends with the final flag. Any other model
sends exactly one response, which ends the request at once. Triton waits for the flag, although
nothing else can follow. In Triton, a client waits forever if the model drops a sender without the
final flag. Naiad ends the request: with a warning in the log if it had a response, or with an error
if it had none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import SupportsIndex

from naiad.backends.python.error import TritonModelException, signature_error
from naiad.backends.python.instance import Instance, from_finalizer
from naiad.backends.python.response import InferenceResponse, encode_response
from naiad.ipc.work import WorkError, WorkResponse

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    __slots__ = ("_handle", "_has_sent", "_instance", "_is_closed", "_output_names")

    def __init__(self, instance: Instance, handle: int, output_names: Collection[str]) -> None:
        self._instance = instance
        self._handle = handle
        self._output_names = output_names
        self._has_sent = False
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if not isinstance(flags, SupportsIndex) or (
            response is not None and not isinstance(response, InferenceResponse)
        ):
            signature = (
                "InferenceResponseSender.send(response: InferenceResponse = None, flags: int = 0)"
            )
            raise signature_error(signature, response, flags)
        self._check(response, flags)
        encoded = None if response is None else encode_response(response, self._output_names)
        if encoded is not None and self._instance.reshapes is not None:
            self._instance.reshapes.to_client(encoded)
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        is_last = is_final or not self._instance.is_decoupled
        has_effect = encoded is not None or self._instance.is_decoupled
        self._has_sent = self._has_sent or response is not None
        self._is_closed = is_final
        if has_effect:
            self._instance.runtime.respond(self._handle, encoded, is_last)

    def _check(self, response: InferenceResponse | None, flags: int) -> None:
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if not self._instance.is_decoupled:
            if response is not None and self._has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send more than one "
                    "response."
                )
            if response is None and not self._has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def is_cancelled(self) -> bool:
        return self._instance.runtime.is_cancelled(self._handle)

    @property
    def _has_ended(self) -> bool:
        return self._is_closed or (self._has_sent and not self._instance.is_decoupled)

    def _close(self) -> bool:
        """Closes the sender because the backend responds to the request itself.

        Returns False if the request has ended already.
        """
        is_open = not self._has_ended
        self._is_closed = True
        return is_open

    def __del__(self) -> None:
        if not self._has_ended:
            from_finalizer(_end_dropped, self._instance, self._handle, self._has_sent)


def _end_dropped(instance: Instance, handle: int, has_sent: bool) -> None:
    if instance.runtime.is_cancelled(handle):
        instance.runtime.respond(handle, None, True)
        return
    problem = (
        "the response sender of a request was dropped without TRITONSERVER_RESPONSE_COMPLETE_FINAL"
    )
    if has_sent:
        instance.log("WARNING", f"{problem}; its response stream was closed")
        instance.runtime.respond(handle, None, True)
        return
    instance.log("ERROR", f"{problem} and without a response")
    message = (
        f"Failed to process the request(s) for model '{instance.name}', "
        "message: the request ended without a response"
    )
    instance.runtime.respond(handle, WorkResponse(error=WorkError("INTERNAL", message)), True)
