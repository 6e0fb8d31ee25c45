"""Runs any causal model that transformers knows with its own modelling code and with Naiad's paged
attention as its attention function.

In:  a checkpoint whose architecture no family implements. Out: the same interface as Decoder, but
     slower: no merged matrices, no captured graphs.
Rule: a trial run on two tokens records each layer's attention. Models that mix tokens elsewhere
      (state spaces, alibi, encoders) are rejected there, because the sequences of a flat batch
      would see each other.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows
import transformers
from torch import Tensor

from naiad.errors import unsupported
from naiad.llm.models.description import KvShape, ModelDescription
from naiad.llm.models.operations import AttentionShape
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


class LayerAttention(msgspec.Struct):
    """What the trial run recorded about one layer."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


class _Trial:
    def __init__(self) -> None:
        self.layers: dict[int, LayerAttention] = {}

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, kwargs: dict[str, Any]
    ) -> Tensor:
        self.layers[module.layer_idx] = LayerAttention(
            query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        )
        if not getattr(module, "is_causal", True):
            raise unsupported("the checkpoint's attention is not causal")
        return torch.zeros(
            (1, query.shape[2], query.shape[1], value.shape[3]),
            dtype=query.dtype,
            device=query.device,
        )


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


_CURRENT: ContextVar[_Trial | _Step] = ContextVar("current")


def _paged_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    return _CURRENT.get().attend(module, query, key, value, kwargs), None


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
        token = _CURRENT.set(_Step(step, cache, self.attention))
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
    path: Path, device: torch.device, dtype: torch.dtype, trust_remote_code: bool
) -> tuple[Any, ModelDescription]:
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
    except (ValueError, ImportError, OSError) as error:
        raise unsupported(
            f"transformers cannot run checkpoint '{path.name}' with paged attention: {error}"
        ) from error
    model = model.to(device).eval()
    layers = _try_out(model, device)
    config = model.config.get_text_config()
    description = ModelDescription(
        vocab_size=model.get_output_embeddings().weight.shape[0],
        max_position_embeddings=getattr(config, "max_position_embeddings", None) or 2048,
        kv_shapes=[
            KvShape(layer.num_kv_heads, max(layer.key_dim, layer.value_dim)) for layer in layers
        ],
        activation_width=12 * config.hidden_size
        + 4 * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
    )
    return model, description


@torch.inference_mode()
def _try_out(model: Any, device: torch.device) -> list[LayerAttention]:
    trial = _Trial()
    token = _CURRENT.set(trial)
    try:
        tokens = torch.zeros((1, 2), dtype=torch.long, device=device)
        model(input_ids=tokens, position_ids=torch.arange(2, device=device)[None], use_cache=False)
    finally:
        _CURRENT.reset(token)
    num_layers = model.config.get_text_config().num_hidden_layers
    if sorted(trial.layers) != list(range(num_layers)):
        kind = model.config.model_type
        raise unsupported(
            f"model_type '{kind}': {len(trial.layers)} of {num_layers} layers attend by "
            f"transformers' attention interface"
        )
    return [trial.layers[index] for index in range(num_layers)]
