"""Converts Triton's parameters of an OpenVINO model to properties of `compile_model`."""

from __future__ import annotations

from typing import Any

from naiad.backends.served_config import ServedConfig
from naiad.errors import invalid_arg

_HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


def compile_options(config: ServedConfig) -> dict[str, Any]:
    """Raises NaiadError if a parameter is invalid.

    The default is one stream, because an instance runs one batch at a time.
    """
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": config.threads("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM")
    }
    hint = config.text("PERFORMANCE_HINT").upper()
    if hint and hint not in _HINTS:
        raise invalid_arg(
            f"parameter 'PERFORMANCE_HINT' of model '{config.name}' is '{hint}', expected one of "
            f"{', '.join(_HINTS)}"
        )
    options["PERFORMANCE_HINT"] = hint or "LATENCY"
    streams = config.text("NUM_STREAMS", config.text("CPU_THROUGHPUT_STREAMS")).upper()
    if streams:
        if streams not in ("AUTO", "NUMA"):
            streams = str(_positive(config, "NUM_STREAMS", streams))
        options["NUM_STREAMS"] = streams
    if config.has("COMPILATION_NUM_THREADS"):
        options["COMPILATION_NUM_THREADS"] = config.integer("COMPILATION_NUM_THREADS", 0)
    # By default, results must equal those of the original framework, so lower precision is opt-in.
    is_bf16 = config.flag("HINT_BF16", False) or config.flag("ENFORCE_BF16", False)
    options["INFERENCE_PRECISION_HINT"] = "bf16" if is_bf16 else "f32"
    return options


def _positive(config: ServedConfig, name: str, text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise invalid_arg(
        f"parameter '{name}' of model '{config.name}' is '{text}', expected AUTO, NUMA or a "
        "positive number"
    )
