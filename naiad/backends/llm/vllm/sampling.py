"""Reads vLLM's SamplingParams by name into SamplingParameters, with vLLM's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.backends.llm.sampling import NAMES, read_json_object, read_sampling, unknown_parameter
from naiad.errors import invalid_arg
from naiad.llm.parameters import SamplingParameters

DEFAULT_MAX_TOKENS = 16
_OWN = frozenset({"guided_decoding", "structured_outputs", "truncate_prompt_tokens", "best_of"})
_IGNORED = frozenset(
    {"spaces_between_special_tokens", "detokenize", "output_kind", "early_stopping"}
)
_ONLY: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,), "beam_width": (1,), "prompt_logprobs": (),
    "length_penalty": (1, 1.0), "lora_name": (),
    "allowed_token_ids": (), "logits_processors": (),
}  # fmt: skip


class VllmSampling(msgspec.Struct, frozen=True):
    parameters: SamplingParameters
    guided_decoding: dict[str, Any] | None
    truncate_prompt_tokens: int


def read_vllm_sampling(values: Mapping[str, Any], *, needs_logprobs: bool) -> VllmSampling:
    """Raises NaiadError."""
    fields = {name: value for name, value in values.items() if value is not None}
    for name, value in fields.items():
        if name in _ONLY and value not in _ONLY[name]:
            raise invalid_arg(f"sampling parameter '{name}' is {value!r}, which cannot be honoured")
        if name not in NAMES and name not in _OWN and name not in _IGNORED and name not in _ONLY:
            raise unknown_parameter(name, NAMES)
    sampling = {
        "max_tokens": DEFAULT_MAX_TOKENS,
        **{name: value for name, value in fields.items() if name in NAMES},
    }
    if needs_logprobs:
        sampling.setdefault("logprobs", 0)
    parameters = read_sampling(sampling)
    best_of = fields.get("best_of", parameters.n)
    if best_of != parameters.n:
        raise invalid_arg(
            f"sampling parameter 'best_of' is {str(best_of)[:40]}, expected n ({parameters.n})"
        )
    guided = fields.get("guided_decoding", fields.get("structured_outputs"))
    if isinstance(guided, str):
        guided = read_json_object("guided_decoding", guided)
    if guided is not None and not isinstance(guided, dict):
        raise invalid_arg("sampling parameter 'guided_decoding' is not an object")
    truncate = fields.get("truncate_prompt_tokens", 0)
    if not isinstance(truncate, int) or truncate < 0:
        raise invalid_arg(
            f"sampling parameter 'truncate_prompt_tokens' is {str(truncate)[:40]}, "
            f"expected a positive number"
        )
    return VllmSampling(parameters, guided, truncate)
