"""--grpc-restricted-protocol: groups of RPCs that need a secret in the request's metadata."""

from __future__ import annotations

import hmac

from naiad.transport.grpc.method import Guard, Method

_PREFIX = "triton-grpc-protocol-"
PROTOCOLS: dict[str, frozenset[str]] = {
    "health": frozenset(("ServerLive", "ServerReady", "ModelReady", "Check", "Watch")),
    "metadata": frozenset(("ServerMetadata", "ModelMetadata")),
    "inference": frozenset(("ModelInfer", "ModelStreamInfer")),
    "shared-memory": frozenset(
        f"{kind}SharedMemory{verb}"
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    ),
    "model-config": frozenset(("ModelConfig",)),
    "model-repository": frozenset(
        ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
    ),
    "statistics": frozenset(("ModelStatistics",)),
    "trace": frozenset(("TraceSetting",)),
    "logging": frozenset(("LogSettings",)),
}


def build_guard(restricted: dict[str, tuple[str, str]]) -> Guard | None:
    if not restricted:
        return None
    needed = {name: secret for group, secret in restricted.items() for name in PROTOCOLS[group]}

    def guard(method: Method, metadata: dict[str, str]) -> str | None:
        secret = needed.get(method.path.rpartition("/")[2])
        if secret is None:
            return None
        header = _PREFIX + secret[0]
        if hmac.compare_digest(metadata.get(header, "").encode(), secret[1].encode()):
            return None
        return f"This protocol is restricted, expecting header '{header}'"

    return guard
