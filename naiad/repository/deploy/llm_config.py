"""The config.pbtxt of a language model: its backend and its checkpoint; the backend knows the
rest."""

from __future__ import annotations

import json
from pathlib import Path

_SAMPLING_DEFAULTS = {"smollm2": {"temperature": 0, "frequency_penalty": 0.3}}
"""At its authors' temperature, 0.2, the 4-bit file of smollm2 drifts into other topics, and
greedily it repeats a line until the limit on two of ten everyday prompts. The penalty ends the
repetition and leaves the first tokens as they are. A repetition penalty counts the prompt, too, and
changes them."""


def llm_config(checkpoint: str) -> str:
    defaults = _SAMPLING_DEFAULTS.get(checkpoint)
    return (
        "# A language model with in-flight batching.\n"
        "# docs/llm-backend.md lists its tensors and parameters.\n"
        'backend: "llm"\n'
        + string_parameter("checkpoint", checkpoint)
        + ("" if defaults is None else string_parameter("sampling_defaults", json.dumps(defaults)))
    )


def checkpoint_name(checkpoint: str) -> str:
    """Returns the checkpoint's name with characters that are unsafe in a URL replaced by "_"."""
    stem = Path(checkpoint).name.removesuffix(".gguf")
    safe = (character if character.isalnum() or character in "._-" else "_" for character in stem)
    return "".join(safe) or "llm"


def string_parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value: {{ string_value: {json.dumps(value)} }} }}\n'
