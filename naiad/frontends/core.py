"""What the endpoints need of the inference core: one small interface per need, and `Core`, which is
all of them.

InferenceCore satisfies them. A handler names the smallest one that it can work with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from naiad.core.health import ServerHealth
from naiad.core.identity import Identity
from naiad.core.memory_budget import MemoryBudget
from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError
from naiad.fastpath.call import FastInference
from naiad.shm.region_table import RegionTable

if TYPE_CHECKING:
    from naiad.core.request import InferRequest
    from naiad.keys.account import Admission
    from naiad.pb.model_config_pb2 import ModelConfig
    from naiad.repository.model import Model


class Inference(FastInference, Protocol):
    """Looks models up and runs requests, with and without validation."""

    def break_sequence(self, request: InferRequest) -> None:
        """The request was refused or lost, so its sequence ends."""
        ...


class UndecidedError(NaiadError):
    """Another process knows what is wrong with a request, and must be asked."""

    def decide(self, admission: Admission | None, then: Callable[[NaiadError], None]) -> None:
        """Calls `then` with the error for the client. The other process decides about the limits of
        the request's key, too."""
        raise NotImplementedError


class Generation(Inference, Protocol):
    """Runs requests of OpenAI's routes."""

    def is_leaving(self, model_name: str) -> bool:
        """True if the server stops, or if the model does not serve: an error that says
        "unavailable" does not mean overload then."""
        ...


class Health(Protocol):
    """Tells whether the server and its models serve."""

    @property
    def is_exiting(self) -> bool: ...

    def is_live(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def health(self) -> ServerHealth: ...

    def is_model_ready(self, name: str, version: str = "") -> bool: ...

    # `answer` is called with the models' own opinion, perhaps before these return.
    def ask_ready(self, answer: Callable[[bool], None]) -> None: ...

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None: ...


class Information(Protocol):
    """Describes the server and its models."""

    @property
    def metadata(self) -> ServerMetadata: ...

    def loaded_models(self) -> Iterable[Model]: ...

    def model_metadata(self, name: str, version: str = "") -> ModelSpec: ...

    def model_config(self, name: str, version: str = "") -> ModelConfig: ...

    def model_config_json(self, name: str, version: str = "") -> bytes: ...

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]: ...

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]: ...


class ModelControl(Protocol):
    """Lists, loads and unloads models."""

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]: ...

    async def load_model(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        *,
        identity: Identity | None = None,
        forwarding: str = "",
    ) -> None: ...

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None: ...


class Core(Generation, Health, Information, ModelControl, Protocol):
    """Everything that an endpoint may ask for."""

    @property
    def budget(self) -> MemoryBudget: ...

    @property
    def regions(self) -> RegionTable: ...
