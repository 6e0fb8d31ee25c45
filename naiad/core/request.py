"""One inference request, whatever endpoint, ensemble step or BLS call it came from.

In:  built by protocol decoders, ensembles and BLS. Out: read by schedulers and workers.
Rule: fields hold what the client asked for; what the core works out about it is in the second
      block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from naiad.core.region_slice import RegionUse
from naiad.core.signature import RequestSignature
from naiad.core.tensor import Tensor

if TYPE_CHECKING:
    from naiad.core.response import ResponseStream
    from naiad.core.statistics import BatchTimes
    from naiad.core.trace import Trace
    from naiad.core.work import WorkResponse

ParameterValue: TypeAlias = bool | int | float | str


class Caller(Protocol):
    """A call of a model (naiad.instances.call_graph.OutgoingCall)."""

    def enter(self, request: InferRequest, model_name: str, instances: Sequence[Any]) -> None:
        """Raises NaiadError when the request would wait for ever."""
        ...


class Relay(Protocol):
    """Knows what comes after a step of an ensemble (naiad.scheduling.ensemble.relay)."""

    def take(
        self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes
    ) -> bool:
        """A batch whose first request is of this step has been answered. False: nothing has
        happened, each is to be answered by itself."""
        ...


class Part(Protocol):
    """A request's place in an ensemble (naiad.scheduling.ensemble.ensemble)."""

    relay: Relay | None


class InferRequest(msgspec.Struct, eq=False):
    model_name: str
    inputs: list[Tensor]
    model_version: str = ""
    """As the client wrote it; empty means the latest version that the policy makes available."""
    id: str = ""
    requested_outputs: list[str] = []
    """Empty means all outputs of the model."""
    parameters: dict[str, ParameterValue] = {}
    """What is not reserved by Triton: goes to the model as it is."""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    """The request's own queue timeout (Triton's `timeout` parameter); 0 means none."""
    deadline_ns: int = 0
    """When the caller stops waiting (grpc-timeout), on the monotonic clock; 0 means never."""

    signature: RequestSignature | None = None
    """Shared with all requests that differ from this one only in id and data; set by the decoders
    that can tell."""
    regions: RegionUse | None = None
    """Tensors in clients' shared memory, until the core has read them."""
    trace: Trace | None = None
    """Of a request that is traced."""

    # Set by the core.
    start_ns: int = 0
    batch_size: int = 1
    queue_start_ns: int = 0
    stream: ResponseStream | None = None
    is_waiting: bool = False
    """In a queue, and not cancelled or timed out there."""
    is_null: bool = False
    """Fills an empty slot of a sequence batch: counted nowhere, answered to nobody."""
    is_inner: bool = False
    """Made on behalf of another request, by an ensemble or a model: it is served while the server
    drains."""
    caller: Caller | None = None
    """The call of a model that it belongs to."""
    part: Part | None = None
    """Of a step of an ensemble: answers of a whole batch of them go on together."""
    is_batched: bool = False
    """Its scheduler keeps nothing of it once an instance has it."""
    waits_in: Any = None
    """The level of a queue that it is in, or was in last: a request of an ensemble comes from one
    queue into the next."""
