"""What workers may ask of the server, for models: calls of other models, custom metrics, model
control.

The server side of it lives in layers above; naiad.wiring implements this protocol.
"""

from __future__ import annotations

from typing import Protocol

from naiad.core.job import Job
from naiad.core.response import ResponseStream
from naiad.instances.busy_poll import BusyPoll
from naiad.instances.lease import LeaseNumbers
from naiad.ipc.work import ControlOperation
from naiad.metrics.operation import MetricOperation


class Services(Protocol):
    @property
    def busy_poll(self) -> BusyPoll | None: ...

    @property
    def lease_numbers(self) -> LeaseNumbers | None:
        """None where no call may bypass the server (`--direct-calls=false`)."""
        ...

    def infer(self, job: Job) -> ResponseStream:
        """Runs a job on behalf of another one. Raises NaiadError when it is refused."""
        ...

    def is_decoupled(self, model_name: str, model_version: str) -> bool:
        """Raises NaiadError for a model that does not serve."""
        ...

    def apply_metric(self, owner: str, operation: MetricOperation) -> float:
        """`owner` is the name of an instance. Raises NaiadError."""
        ...

    def drop_metrics(self, owner: str) -> None: ...

    async def control(self, owner: str, operation: ControlOperation) -> bool:
        """Loads, unloads or asks about a model. Raises NaiadError."""
        ...
