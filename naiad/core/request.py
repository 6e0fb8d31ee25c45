"""One inference request: what a client, an ensemble step or a BLS call asks for.

In:  built by protocol decoders, ensembles and BLS. Out: read by schedulers and workers.
Rule: what the server notes about a request on its way is in naiad.core.job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from naiad.core.region_slice import RegionUse
from naiad.core.tensor import Tensor

if TYPE_CHECKING:
    from naiad.core.trace import Trace

ParameterValue: TypeAlias = bool | int | float | str


class RequestForm(msgspec.Struct):
    """Shared by requests that differ in nothing but id and tensor data: clients repeat themselves.
    What was found out about one holds for all: which check accepted the form, with which tensor
    sizes."""

    accepted_by: object = None
    """The check that accepts such requests whatever their data is; None where the last one looks at
    the data."""
    sizes: list[int] = []
    batch_size: int = 1
    answer: Any = None
    """What the encoder of the answers keeps of the last one."""
    steps: dict[int, tuple[object, RequestForm]] | None = None
    """By number: forms of the requests that an ensemble makes of one of this form, and the step
    that it was."""

    def step(self, number: int, step: object) -> RequestForm:
        """A form outlives the ensemble: of another copy of it, nothing is known yet."""
        if self.steps is None:
            self.steps = {}
        found = self.steps.get(number)
        if found is None or found[0] is not step:
            found = self.steps[number] = (step, RequestForm())
        return found[1]


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

    form: RequestForm | None = None
    """Set by decoders that recognise a repeated request."""
    regions: RegionUse | None = None
    """Tensors in clients' shared memory, until the core has read them."""
    trace: Trace | None = None
    """Set when the request is traced."""
    batch_size: int = 1
    """Set by the model's check of the request."""
