"""Lists the options that are accepted and validated but have no effect.

Setting such an option to a value other than its default logs one warning at start. The rest of the
server does not treat these options specially. Delete an option's row when you implement it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_YET = " in this version"

WITHOUT_EFFECT: dict[str, str] = {
    # Not implemented yet.
    "allow-sagemaker": NOT_YET,
    "sagemaker-port": NOT_YET,
    "sagemaker-safe-port-range": NOT_YET,
    "allow-vertex-ai": NOT_YET,
    "vertex-ai-port": NOT_YET,
    "vertex-ai-default-model": NOT_YET,
    "repoagent-directory": NOT_YET,
    "min-supported-compute-capability": NOT_YET,
    # Naiad's design has nothing that these options could control.
    "enable-peer-access": ": each model's process manages its own GPU memory",
    "grpc-infer-thread-count": ": --frontend-processes sets the number of processes",
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
    """Returns one warning for each option without effect in `changed`.

    `changed` maps the names of the options that do not have their default to their values.
    """
    return [
        f"--{name} is accepted but has no effect{reason}"
        for name, reason in WITHOUT_EFFECT.items()
        if name in changed
    ]
