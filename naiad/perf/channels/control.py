"""The interface for requests that are not load: metadata, statistics, shared memory, loading.

Rule: HTTP and gRPC have the same interface, so that measuring does not depend on the protocol.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from naiad.perf.data.model_facts import ModelFacts, ensemble_steps, model_facts


class ControlError(Exception):
    """The server cannot be reached or returned an error. The message is shown to the user."""


class ServerControl(Protocol):
    async def server_metadata(self) -> dict[str, Any]: ...

    async def model_metadata(self, model: str, version: str) -> dict[str, Any]: ...

    async def model_config(self, model: str, version: str) -> dict[str, Any]: ...

    async def model_statistics(self, model: str, version: str) -> list[dict[str, Any]]: ...

    async def model_names(self) -> list[str]:
        """The models that serve."""

    async def is_model_ready(self, model: str, version: str = "") -> bool: ...

    async def load_model(self, model: str, config: str = "") -> None:
        """Loads a model. `config` is JSON that replaces the model's configuration."""

    async def unload_model(self, model: str) -> None: ...

    async def set_trace(self, model: str, settings: dict[str, list[str]]) -> None: ...

    async def register_memory(self, kind: str, name: str, document: dict[str, Any]) -> None:
        """Registers a region. `kind` is "system" or "cuda"; `document` is the HTTP body."""

    async def unregister_memory(self, kind: str) -> None:
        """Unregisters all regions of a kind."""

    async def close(self) -> None: ...


class ComposingModels(msgspec.Struct, frozen=True):
    names: tuple[tuple[str, str], ...] = ()
    has_sequence: bool = False
    has_decoupled: bool = False


async def read_model_facts(
    control: ServerControl, model: str, version: str, bls_composing: list[tuple[str, str]]
) -> ModelFacts:
    server = await control.server_metadata()
    metadata = await control.model_metadata(model, version)
    config = await control.model_config(model, version)
    facts = model_facts(metadata, config, version, list(server.get("extensions", [])))
    parts = await _composing(control, ensemble_steps(config) + bls_composing)
    return msgspec.structs.replace(
        facts,
        composing=parts.names,
        is_sequence=facts.is_sequence or (facts.is_ensemble and parts.has_sequence),
        is_decoupled=facts.is_decoupled or (facts.is_ensemble and parts.has_decoupled),
    )


async def _composing(control: ServerControl, models: list[tuple[str, str]]) -> ComposingModels:
    """Returns each composing model once, in the order of the steps, including the steps of nested
    ensembles."""
    names: dict[tuple[str, str], None] = {}
    has_sequence = has_decoupled = False
    waiting = list(reversed(models))
    while waiting:
        entry = waiting.pop()
        if entry in names:
            continue
        names[entry] = None
        config = await control.model_config(*entry)
        has_sequence |= "sequence_batching" in config
        has_decoupled |= bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        waiting += reversed(ensemble_steps(config))
    return ComposingModels(tuple(names), has_sequence, has_decoupled)
