"""Options that are accepted, checked and carried, but change nothing: the one place that says so.

A feature that arrives deletes its rows here. Setting such an option to something else than its
default is one warning at start; the rest of the server need not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATER = " in this version"

WITHOUT_EFFECT: dict[str, str] = {
    # Features to come.
    "allow-sagemaker": LATER,
    "sagemaker-port": LATER,
    "sagemaker-safe-port-range": LATER,
    "allow-vertex-ai": LATER,
    "vertex-ai-port": LATER,
    "vertex-ai-default-model": LATER,
    "repoagent-directory": LATER,
    "min-supported-compute-capability": LATER,
    # What has no counterpart here.
    "enable-peer-access": ": each model's process manages its own GPU memory",
    "http-thread-count": ": one event loop serves all connections",
    "grpc-infer-thread-count": ": one event loop serves all connections",
    "sagemaker-thread-count": ": one event loop serves all connections",
    "vertex-ai-thread-count": ": one event loop serves all connections",
    "grpc-infer-allocation-pool-size": ": request objects are not pooled",
    "grpc-max-response-pool-size": ": response objects are not pooled",
    "cache-directory": ": caches are part of the server",
    "pinned-memory-pool-byte-size": ": there is no pool of pinned memory",
    "cuda-memory-pool-byte-size": ": each model's process manages its own GPU memory",
    "cuda-virtual-address-size": ": each model's process manages its own GPU memory",
    "buffer-manager-thread-count": ": tensors are not copied by threads",
}


def warnings_about(changed: Mapping[str, Any]) -> list[str]:
    """`changed`: the options that are not at their defaults, by name."""
    return [
        f"--{name} is accepted but has no effect{why}"
        for name, why in WITHOUT_EFFECT.items()
        if name in changed
    ]
