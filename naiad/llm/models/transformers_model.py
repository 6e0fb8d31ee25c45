"""Runs any causal model that transformers knows with its own modelling code and with Naiad's paged
attention as its attention function.

In:  a checkpoint whose architecture no family implements. Out: the same interface as Decoder, but
     slower: no merged matrices, no captured graphs.
Rule: a trial run (transformers_trial.py) records each layer's attention and compares logits with
      transformers' own. Models that mix tokens elsewhere (state spaces, alibi, encoders) are
      rejected there, because the sequences of a flat batch would see each other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
import transformers
from torch import Tensor

from naiad.errors import unsupported
from naiad.llm.models.description import ModelDescription
from naiad.llm.models.operations import AttentionShape
from naiad.llm.models.transformers_trial import (
    WITHOUT_INTERFACE,
    Attend,
    longest_exact,
    told,
    try_out,
)
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput

ATTENTION_NAME = "naiad_paged"


class PagedAttention(Protocol):
    def store_and_attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        index: int,
        shape: AttentionShape,
        step: StepInput,
        cache: KvCache,
    ) -> Tensor: ...


class _Step:
    def __init__(self, step: StepInput, cache: KvCache, attention: PagedAttention) -> None:
        self.step = step
        self.cache = cache
        self.attention = attention

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]
    ) -> Tensor:
        index, value_dim = module.layer_idx, value.shape[3]
        width = self.cache.keys[index].shape[3]
        shape = AttentionShape(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            head_dim=width,
            rotary_dim=0,
            scale=kwargs.get("scaling") or query.shape[3] ** -0.5,
            softcap=kwargs.get("softcap") or 0.0,
            window=kwargs.get("sliding_window") or 0,
        )
        query, key, value = (_flatten(one, width) for one in (query, key, value))
        out = self.attention.store_and_attend(
            query, key, value, index, shape, self.step, self.cache
        )
        return out.view(1, -1, shape.num_heads, width)[..., :value_dim]


_CURRENT: ContextVar[Attend] = ContextVar("current")


def _paged_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    if attention_mask is not None:
        raise unsupported(
            "the model makes an attention mask of its own, which paged attention has not"
        )
    return _CURRENT.get()(module, query, key, value, kwargs), None


def _flatten(heads: Tensor, width: int) -> Tensor:
    """[1, heads, tokens, dim] -> [tokens, heads, width]; values narrower than keys are padded."""
    flat = heads[0].transpose(0, 1)
    return flat if flat.shape[2] == width else F.pad(flat, (0, width - flat.shape[2]))


class TransformersModel:
    def __init__(self, model: Any, attention: PagedAttention, next_tokens: Tensor) -> None:
        self.model = model
        self.attention = attention
        self.next_tokens = next_tokens
        self._can_pick_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, step: StepInput, cache: KvCache) -> Tensor:
        tokens = torch.where(
            step.token_ids < 0, self.next_tokens[step.slots.long()], step.token_ids
        ).long()
        rows = None if step.sample_rows is None else step.sample_rows.long()
        token = _CURRENT.set(_Step(step, cache, self.attention).attend)
        try:
            return self._logits(tokens, step.positions.long(), rows)
        finally:
            _CURRENT.reset(token)

    def _logits(self, tokens: Tensor, positions: Tensor, rows: Tensor | None) -> Tensor:
        extra = {"logits_to_keep": rows} if self._can_pick_rows and rows is not None else {}
        logits: Tensor = self.model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False, **extra
        ).logits[0]
        return logits if extra or rows is None else logits[rows]


def load_transformers_model(
    path: Path,
    model_type: str,
    device: torch.device,
    dtype: torch.dtype,
    trust_remote_code: bool,
    log: Callable[[str], None] = lambda _: None,
) -> tuple[Any, ModelDescription]:
    """Raises NaiadError."""
    transformers.AttentionInterface.register(ATTENTION_NAME, _paged_attention)
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
        )
    except Exception as error:
        # It is foreign code that reads a user's checkpoint: whatever it raises is its refusal.
        reason = (
            f"transformers' code {WITHOUT_INTERFACE}"
            if error.args == (ATTENTION_NAME,)
            else f"transformers cannot run it with paged attention: {told(error)}"
        )
        raise unsupported(f"model_type '{model_type}': {reason}") from error
    model = model.to(device).eval()
    layers = try_out(model, partial(_trial_logits, model))
    config, embeddings = model.config.get_text_config(), model.get_input_embeddings()
    width = embeddings.weight.shape[1]
    limit = getattr(config, "max_position_embeddings", None) or 2048
    exact = longest_exact(config)
    if exact is not None and exact < limit:
        log(
            f"the context of '{path.name}' is {exact} tokens, not {limit}: the rotary frequencies "
            "of its type depend on the longest sequence of a step beyond that"
        )
        limit = exact
    description = ModelDescription(
        vocab_size=(model.get_output_embeddings() or embeddings).weight.shape[0],
        max_position_embeddings=limit,
        kv_shapes=[layer.kv_shape() for layer in layers],
        activation_width=12 * width
        + 4 * _widest(getattr(config, "intermediate_size", None), 4 * width),
    )
    return model, description


def _widest(value: Any, default: int) -> int:
    """Some configs have a size per layer."""
    sizes = value if isinstance(value, list | tuple) else [value]
    return max((size for size in sizes if isinstance(size, int)), default=default) or default


@torch.inference_mode()
def _trial_logits(model: Any, attend: Attend, tokens: Tensor, positions: Tensor) -> Tensor:
    token = _CURRENT.set(attend)
    try:
        logits: Tensor = model(
            input_ids=tokens[None], position_ids=positions[None], use_cache=False
        ).logits[0]
    finally:
        _CURRENT.reset(token)
    return logits
