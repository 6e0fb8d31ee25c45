"""One inference request: what a client, an ensemble step or a BLS call asks for.

In:  built by protocol decoders, ensembles and BLS. Out: read by schedulers and workers.
Rule: what the server notes about a request on its way is in naiad.core.job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from naiad.core.region_slice import RegionUse
from naiad.core.signature import RequestSignature
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError

if TYPE_CHECKING:
    from naiad.core.identity import Identity
    from naiad.core.trace import Trace

ParameterValue: TypeAlias = bool | int | float | str
SequenceKey: TypeAlias = int | str | tuple[str, int | str]
"""How a client names a sequence: its id, with the id of the API key if there are keys."""


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
    """Set when the request is traced."""
    batch_size: int = 1
    """Set by the model's check of the request."""
    identity: Identity | None = None
    """The owner of the request; None where the server has no API keys. The steps of an ensemble
    have the identity of its request. The calls of a model have the identity of the requests that
    it executes, and none if these came with different keys."""
    is_call: bool = False
    """A model makes the request. Its sequence ids are the model's own: they are the same whichever
    key the model works for at the moment."""
    string_faults: dict[str, NaiadError] | None = None
    """The faults, by input, that were found when the elements of all BYTES inputs were counted
    outside of the event loop. None when nobody has counted them yet."""

    admission: object | None = None
    """The guard's record of the request, which a frontend process sends along with it."""

    encoded_inputs: msgspec.Raw | None = None
    """The inputs as they travel to a worker, if the request came from a frontend process and
    nothing on its way needs to look at them. `inputs` is empty then."""
    accepts_encoded: bool = False
    """The responses go to a frontend process, which decodes their outputs."""

    @property
    def sequence_key(self) -> SequenceKey:
        identity = self.identity
        if identity is None or self.is_call:
            return self.sequence_id
        return identity.key_id, self.sequence_id
