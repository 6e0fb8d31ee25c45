"""Maps model_type of config.json to the family that implements it. Other checkpoints run with
transformers' own code."""

from __future__ import annotations

from naiad.llm.models import falcon, gemma2, llama, persimmon, phi3
from naiad.llm.models.family import Family

FAMILIES: dict[str, Family] = {
    "llama": llama.FAMILY,
    "mistral": llama.FAMILY,
    "qwen2": llama.FAMILY,
    "qwen3": llama.FAMILY,
    "phi3": phi3.FAMILY,
    "gemma2": gemma2.FAMILY,
    "falcon": falcon.FAMILY,
    "persimmon": persimmon.FAMILY,
}


def find_family(model_type: str) -> Family | None:
    return FAMILIES.get(model_type)
