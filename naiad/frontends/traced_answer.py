"""The endpoint's part of a trace: when the request came, when each answer went.

In:  the consumer that writes answers. Out: one that notes around it. Only traced requests have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.core.response import Consumer, InferResponse, ResponseStream
from naiad.core.trace import TraceGroup
from naiad.errors import NaiadError

if TYPE_CHECKING:
    from naiad.inference import InferenceCore


def infer_in_trace(
    core: InferenceCore, request: InferRequest, group: TraceGroup | None
) -> ResponseStream:
    """Raises NaiadError as the core does; a request that it refuses leaves no trace."""
    if group is None:
        return core.infer(request)
    request.trace = group.new_trace()
    try:
        return core.infer(request)
    except NaiadError:
        group.discard()
        raise


def traced(group: TraceGroup, consumer: Consumer, protocol: str) -> Consumer:
    """`protocol`: HTTP or GRPC. Encoding counts as sending: it happens while the answer is
    written."""

    def take(response: InferResponse | None, is_final: bool) -> None:
        group.stamp(f"{protocol}_SEND_START")
        consumer(response, is_final)
        group.stamp(f"{protocol}_SEND_END")
        if is_final:
            group.close()

    return take
