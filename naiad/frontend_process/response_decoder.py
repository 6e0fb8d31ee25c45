"""Messages of the server process -> what a frontend acts on.

The server passes the outputs of workers on without looking at them. A worker may send outputs that
are no tensors; the rest of the message, which belongs to other requests and models, is good.
Rule: such outputs fail their own request, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from naiad.core.request import ParameterValue
from naiad.core.tensor import Tensor
from naiad.frontend_process.messages import RemoteResponse, Respond, ToFrontend
from naiad.ipc.framing import NOT_DECODED
from naiad.ipc.messages import Message
from naiad.ipc.work import WorkError

NO_TENSORS = "the worker of the model has sent outputs that are not tensors"


class UnseenResponse(msgspec.Struct, array_like=True):
    """A RemoteResponse whose outputs are not decoded."""

    handle: int
    is_final: bool
    has_response: bool
    model_name: str = ""
    model_version: str = ""
    outputs: msgspec.Raw = msgspec.Raw(b"\x90")
    parameters: dict[str, ParameterValue] = {}
    error: WorkError | None = None
    is_inline: bool = True


class UnseenBundle(msgspec.Struct, array_like=True):
    """A BundleResponse whose outputs are not decoded."""

    handles: list[int]
    model_name: str
    model_version: str
    outputs: list[msgspec.Raw]


class UnseenRespond(Message, tag=122):
    responses: list[UnseenResponse]
    bundles: list[UnseenBundle] = []


_decode_message = msgspec.msgpack.Decoder(ToFrontend).decode
_decode_unseen = msgspec.msgpack.Decoder(UnseenRespond).decode
_decode_outputs = msgspec.msgpack.Decoder(list[Tensor]).decode


class ResponseDecoder:
    """Stands in for a decoder of msgspec (naiad.ipc.framing.Link)."""

    def __init__(self, on_bad_outputs: Callable[[str, str], None]) -> None:
        """The callback gets the name and the version of the model."""
        self._on_bad_outputs = on_bad_outputs

    def decode(self, data: bytes | memoryview) -> ToFrontend:
        """Raises NOT_DECODED."""
        try:
            message: ToFrontend = _decode_message(data)
            return message
        except NOT_DECODED:
            return self._decode_each(data)

    def _decode_each(self, data: bytes | memoryview) -> Respond:
        message = _decode_unseen(data)
        items = message.responses
        for bundle in message.bundles:
            name, version = bundle.model_name, bundle.model_version
            items += [
                UnseenResponse(handle, True, True, name, version, outputs)
                for handle, outputs in zip(bundle.handles, bundle.outputs, strict=True)
            ]
        return Respond([self._seen(item) for item in items])

    def _seen(self, item: UnseenResponse) -> RemoteResponse:
        try:
            outputs, error = _decode_outputs(item.outputs), item.error
        except NOT_DECODED:
            outputs, error = [], WorkError("INTERNAL", NO_TENSORS)
            self._on_bad_outputs(item.model_name, item.model_version)
        return RemoteResponse(
            item.handle,
            item.is_final,
            item.has_response,
            item.model_name,
            item.model_version,
            outputs,
            item.parameters,
            error,
            item.is_inline,
        )
