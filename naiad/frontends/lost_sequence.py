"""A request that is refused or lost ends its sequence: with a gap it would be another sequence, and
later requests would be answered with wrong numbers.

In:  requests, or what has arrived of them, from wherever they are refused. Out: `break_sequence` of
     the core.
Rule: whoever refuses a request of the inference protocol before the core has seen it comes here;
      the core itself ends the sequence of what it refuses.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from naiad.core.identity import Identity
from naiad.core.request import InferRequest
from naiad.core.tensor import Buffer
from naiad.protocol.v2 import lost_request

MAX_OPEN = 65_536
"""How many sequences of one stream, or of one frontend process, are remembered."""


class SequenceBreaker(Protocol):
    def break_sequence(self, request: InferRequest) -> None: ...


def lose(
    core: SequenceBreaker, requests: list[InferRequest], identity: Identity | None = None
) -> bool:
    """Returns True if one of them belongs to a sequence."""
    found = [request for request in requests if request.sequence_id]
    for request in found:
        request.identity = identity
        core.break_sequence(request)
    return bool(found)


def lose_message(
    core: SequenceBreaker,
    head: object,
    message: Buffer,
    identity: Identity | None,
    is_compressed: bool,
) -> None:
    """A ModelInferRequest, or its beginning. See OnLost."""
    if is_compressed:
        message = lost_request.uncompressed(message)
    lose(core, lost_request.in_message(message), identity)


class OpenSequences:
    """The sequences that have begun and not ended on one stream or in one frontend process. When
    that breaks off, nobody knows which of their requests were on the way."""

    def __init__(self, core: SequenceBreaker) -> None:
        self._core = core
        self._open: OrderedDict[tuple[object, ...], InferRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def note(self, request: InferRequest, identity: Identity | None) -> None:
        """Must be called before the core gets the request, which may change it."""
        if not request.sequence_id:
            return
        owner = None if identity is None else identity.key_id
        key = (request.model_name, request.model_version, owner, request.sequence_id)
        if request.sequence_end:
            self._open.pop(key, None)
            return
        if key not in self._open:
            self._open[key] = InferRequest(
                request.model_name,
                [],
                request.model_version,
                sequence_id=request.sequence_id,
                identity=identity,
            )
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(key)

    def break_all(self) -> None:
        requests, self._open = self._open, OrderedDict()
        for request in requests.values():
            self._core.break_sequence(request)
