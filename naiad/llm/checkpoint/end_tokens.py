"""`eos_token_id` of a Hugging Face config: none, one or several. Apart from the models, so that
whoever needs only this needs no torch."""

from __future__ import annotations


def read_eos(raw: dict[str, object]) -> list[int]:
    eos = raw.get("eos_token_id")
    if isinstance(eos, int):
        return [eos]
    return [token for token in eos if isinstance(token, int)] if isinstance(eos, list) else []
