"""Outputs that are not tensors fail their own request; the rest of their message is good."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from naiad.core.tensor import Tensor
from naiad.frontend_process.messages import (
    AskAlive,
    BundleResponse,
    RemoteResponse,
    Respond,
)
from naiad.frontend_process.response_decoder import NO_TENSORS, ResponseDecoder
from naiad.ipc.framing import NOT_DECODED

GOOD = [Tensor("OUTPUT0", "UINT8", [1], b"7")]
BAD = [
    5,
    {"OUTPUT0": 1},
    [["OUTPUT0", "UINT8", [1]]],
    [["OUTPUT0", 8, [1], b"7"]],
    msgspec.Raw(b"\x91\x94\xa1\xff\xa5UINT8\x90\xc4\x00"),
]


class Rig:
    def __init__(self) -> None:
        self.reported: list[tuple[str, str]] = []
        self.decoder = ResponseDecoder(lambda *model: self.reported.append(model))

    def decode(self, message: Any) -> Any:
        return self.decoder.decode(msgspec.msgpack.encode(message))

    def outcomes(self, *responses: Any, bundles: Any = ()) -> dict[int, str]:
        """Handle -> the data of the only output, or the error."""
        message = self.decode(Respond(list(responses), list(bundles)))
        found = {one.handle: self._outcome(one) for one in message.responses}
        for bundle in message.bundles:
            found |= {
                handle: bytes(outputs[0].data).decode()
                for handle, outputs in zip(bundle.handles, bundle.outputs, strict=True)
            }
        return found

    def _outcome(self, response: RemoteResponse) -> str:
        if response.error is not None:
            assert response.outputs == []
            return response.error.message
        return bytes(response.outputs[0].data).decode()


def response(handle: int, outputs: Any, *, is_final: bool = True) -> RemoteResponse:
    return RemoteResponse(handle, is_final, True, "m", "1", outputs)


def test_good_messages_are_decoded_as_they_are() -> None:
    rig = Rig()
    assert rig.decode(AskAlive(3)) == AskAlive(3)
    bundles = [BundleResponse([2, 3], "m", "1", [GOOD, GOOD])]
    assert rig.outcomes(response(1, GOOD), bundles=bundles) == {1: "7", 2: "7", 3: "7"}
    assert rig.reported == []


@pytest.mark.parametrize("outputs", BAD)
def test_one_of_several_responses_is_bad(outputs: Any) -> None:
    rig = Rig()
    found = rig.outcomes(response(1, GOOD), response(2, outputs), response(3, GOOD))
    assert found == {1: "7", 2: NO_TENSORS, 3: "7"}
    assert rig.reported == [("m", "1")]


@pytest.mark.parametrize("outputs", BAD)
def test_one_response_of_a_bundle_is_bad(outputs: Any) -> None:
    rig = Rig()
    good = BundleResponse([4, 5], "other", "2", [GOOD, GOOD])
    mixed = BundleResponse([2, 3], "m", "1", [outputs, GOOD])
    assert rig.outcomes(response(1, GOOD), bundles=[mixed, good]) == {
        1: "7", 2: NO_TENSORS, 3: "7", 4: "7", 5: "7",
    }  # fmt: skip
    assert rig.reported == [("m", "1")]


def test_a_stream_goes_on_after_a_bad_response() -> None:
    message = Rig().decode(Respond([response(1, 5, is_final=False)]))
    assert [(one.is_final, one.has_response) for one in message.responses] == [(False, True)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", msgspec.msgpack.encode([122, 5]), msgspec.msgpack.encode([121]), b"\x91" * 5000],
)
def test_what_the_server_does_not_send_is_refused(data: bytes) -> None:
    with pytest.raises(NOT_DECODED):
        Rig().decoder.decode(data)
