"""How the server, its models and their instances are, for `GET /v2/health/details`."""

from __future__ import annotations

import msgspec


class InstanceHealth(msgspec.Struct, omit_defaults=True):
    name: str
    state: str
    """`ready`, `executing`, `lent`, `unresponsive`, `restarting`, `crash loop`, `files missing`,
    `starting` or `stopped`."""
    executing_seconds: float | None = None
    """How long the oldest batch has been executing."""
    down_seconds: float | None = None
    """Time since the worker ended."""
    reason: str = ""
    """Why the instance is down."""


class ModelHealth(msgspec.Struct, omit_defaults=True):
    name: str
    version: str
    ready: bool
    instances: list[InstanceHealth]


class ServerHealth(msgspec.Struct):
    live: bool
    ready: bool
    models: list[ModelHealth]
    """Every loaded version; for a client with an API key, those that the key may see."""
