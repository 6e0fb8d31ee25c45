"""`pb_utils.InferenceResponseSender`: answers one received request, from any thread, also long
                                    after `execute` returned.

A decoupled model may send any number of responses and ends with the final flag. A model that is not
decoupled sends exactly one, which ends the request here at once: Triton waits for the flag, but
nothing else can follow. A sender that is dropped without the final flag would leave the client
waiting for ever, as it does under Triton. Here the request ends: silently (a warning in the log)
after at least one response, with an error when there was none.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import SupportsIndex

from naiad.backends.python.error import TritonModelException, signature_error
from naiad.backends.python.instance import Instance, from_finalizer
from naiad.backends.python.response import InferenceResponse, encode_response
from naiad.core.work import WorkError, WorkResponse

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class InferenceResponseSender:
    __slots__ = ("_handle", "_has_sent", "_instance", "_is_closed", "_wanted")

    def __init__(self, instance: Instance, handle: int, wanted: Collection[str]) -> None:
        self._instance = instance
        self._handle = handle
        self._wanted = wanted
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
        encoded = None if response is None else encode_response(response, self._wanted)
        if encoded is not None and self._instance.reshapes is not None:
            self._instance.reshapes.to_client(encoded)
        is_final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        is_last = is_final or not self._instance.is_decoupled
        must_tell = encoded is not None or self._instance.is_decoupled
        self._has_sent = self._has_sent or response is not None
        self._is_closed = is_final
        if must_tell:
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
                    "Unable to send response. Non-decoupled model cannot send more than one response."
                )
            if response is None and not self._has_sent:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
                )
        if self._is_closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def is_cancelled(self) -> bool:
        return self._instance.runtime.is_cancelled(self._handle)

    @property
    def _is_answered(self) -> bool:
        return self._is_closed or (self._has_sent and not self._instance.is_decoupled)

    def _take_over(self) -> bool:
        """For the backend, which has an answer of its own: closes the sender. False when the
        request has been answered already."""
        is_open = not self._is_answered
        self._is_closed = True
        return is_open

    def __del__(self) -> None:
        if not self._is_answered:
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
    message = f"Failed to process the request(s) for model '{instance.name}', message: the request ended without a response"
    instance.runtime.respond(handle, WorkResponse(error=WorkError("INTERNAL", message)), True)
