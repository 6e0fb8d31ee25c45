"""Reads `eos_token_id` of a Hugging Face config: none, one or several. This is a separate file so
that the OpenVINO engine can use it without torch."""

from __future__ import annotations


def read_eos(raw: dict[str, object]) -> list[int]:
    eos = raw.get("eos_token_id")
    if isinstance(eos, int):
        return [eos]
    return [token for token in eos if isinstance(token, int)] if isinstance(eos, list) else []
