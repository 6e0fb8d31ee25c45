"""The trial run of a model that transformers' own code computes: is its answer with paged attention
the one that transformers gives?

In:  a model whose attention function is ours. Out: what each layer's attention looks like.
Rule: two short sequences are computed as the one flat batch that a step is, and the logits of the
      second are compared with those of transformers' own attention for it alone. A difference
      shows that something other than our attention lets tokens see each other, or that the
      attention has parts that ours lacks. What a short run cannot reach (windows, chunks) is
      checked by name. What is not understood is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor

from naiad.errors import NaiadError, unsupported
from naiad.llm.models.description import KvShape

Attend = Callable[[Any, Tensor, Tensor, Tensor, dict[str, Any]], Tensor]
RunWith = Callable[[Attend, Tensor, Tensor], Tensor]
"""(attention, tokens, positions) -> the logits of all tokens."""

_FIRST, _SECOND = 5, 8
"""Tokens of the two sequences."""
_KNOWN = frozenset({"scaling", "softcap", "sliding_window"})
_WITHOUT_MEANING = frozenset(
    {
        "dropout", "position_ids", "cache_position", "use_cache", "output_attentions",
        "output_hidden_states", "output_router_logits", "return_dict", "logits_to_keep",
        "num_items_in_batch", "position_embeddings", "target_dtype", "is_causal",
    }
)  # fmt: skip
"""Arguments of an attention call that change nothing in a forward pass without a cache; `is_causal`
is looked at."""
_FULL, _SLIDING = "full_attention", "sliding_attention"
_WINDOW_WORDS = ("window", "chunk")
_KNOWN_WINDOWS = frozenset(
    {
        "sliding_window", "use_sliding_window", "max_window_layers", "sliding_window_pattern",
        "chunk_size_feed_forward",
    }
)  # fmt: skip
WITHOUT_INTERFACE = "does not use its attention interface"
_LENGTH_ROPES = ("dynamic", "longrope")


class LayerAttention(msgspec.Struct):
    """What the trial run recorded about one layer."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int
    num_calls: int = 0

    def kv_shape(self) -> KvShape:
        return KvShape(self.num_kv_heads, max(self.key_dim, self.value_dim))


def try_out(model: Any, run: RunWith) -> list[LayerAttention]:
    """Raises NaiadError if the model cannot be served."""
    config = model.config.get_text_config()
    trial = _Trial(config)
    try:
        _check_layer_kinds(config)
        layers = _record(model, trial, run)
        _check_windows(config, layers)
    except NaiadError:
        raise
    except Exception as error:
        # It is foreign code: whatever it raises is a model that cannot run here.
        reason = "fails" if trial.is_asked else WITHOUT_INTERFACE
        raise _refusal(config, f"transformers' code {reason}: {told(error)}") from error
    return layers


def longest_exact(config: Any) -> int | None:
    """The context up to which rotary frequencies are the same for all sequences of a step; None
    without a limit. Beyond it these types choose frequencies by the longest one."""
    limits = [
        int(rope.get("original_max_position_embeddings") or config.max_position_embeddings)
        for rope in _ropes(config)
        if rope.get("rope_type") in _LENGTH_ROPES
    ]
    return min(limits, default=None)


def _ropes(config: Any) -> list[dict[str, Any]]:
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [found]


def _refusal(config: Any, reason: str) -> NaiadError:
    return unsupported(f"model_type '{config.model_type}': {reason}")


def told(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _check_layer_kinds(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}
    if kinds:
        raise _refusal(
            config,
            f"layer_types has {', '.join(sorted(map(repr, kinds)))}, and paged attention knows "
            f"'{_FULL}' and '{_SLIDING}'",
        )
    for name, value in config.to_dict().items():
        is_pattern = name.startswith("_") or name in _KNOWN_WINDOWS
        if value and not is_pattern and any(word in name for word in _WINDOW_WORDS):
            raise _refusal(config, f"'{name}' in its config is not understood")


def _check_windows(config: Any, layers: list[LayerAttention]) -> None:
    kinds = getattr(config, "layer_types", None) or []
    for index, (kind, layer) in enumerate(zip(kinds, layers, strict=False)):
        if kind == _SLIDING and not layer.window:
            raise _refusal(config, f"layer {index} does not pass its sliding window to attention")
    if (
        getattr(config, "sliding_window", None)
        and getattr(config, "use_sliding_window", True)
        and _FULL not in kinds
        and not any(layer.window for layer in layers)
    ):
        raise _refusal(config, "no layer passes 'sliding_window' to attention")


@torch.inference_mode()
def _record(model: Any, trial: _Trial, run: RunWith) -> list[LayerAttention]:
    device = next(model.parameters()).device
    vocab_size = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab_size, (_FIRST + _SECOND,), generator=generator).to(device)
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)]).to(device)
    logits = run(trial.attend, tokens, positions)[_FIRST:]
    layers = trial.checked_layers()
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        # Without positions, because some models count them from another number than 0.
        expected = model(input_ids=tokens[None, _FIRST:], use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(ours)
    _compare(model.config.get_text_config(), logits.float(), expected.float())
    return layers


def _compare(config: Any, logits: Tensor, expected: Tensor) -> None:
    spread = (expected - expected.mean(dim=1, keepdim=True)).norm(dim=1)
    errors = (logits - expected).norm(dim=1) / spread.clamp(min=1e-9)
    is_wide = config.dtype in (None, torch.float32)
    # Rounding of half types adds up over layers, and one expert chosen otherwise moves a whole row.
    error, limit = (errors.max(), 1e-3) if is_wide else (errors.median(), 0.1)
    if not float(error) <= limit:
        raise _refusal(
            config,
            "with paged attention its answers are not those of transformers (tokens mix outside "
            f"of attention, or attention has a part that is not known); logits differ by "
            f"{float(error):.1%}, expected at most {limit:.1%}",
        )


class _Trial:
    """Attention over the two sequences, written down plainly."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._layers: dict[int, LayerAttention] = {}

    @property
    def is_asked(self) -> bool:
        return bool(self._layers)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, arguments: dict[str, Any]
    ) -> Tensor:
        self._check(module, arguments)
        window = int(arguments.get("sliding_window") or 0)
        layer = self._layers.setdefault(
            module.layer_idx,
            LayerAttention(query.shape[1], key.shape[1], key.shape[3], value.shape[3], window),
        )
        layer.num_calls += 1
        if query.shape[2] != _FIRST + _SECOND or key.shape[2] != query.shape[2]:
            raise _refusal(self._config, "attention gets other tokens than those of the step")
        groups = query.shape[1] // key.shape[1]
        keys, values = (one.repeat_interleave(groups, dim=1).float() for one in (key, value))
        scores = query.float() @ keys.transpose(2, 3)
        scores = scores * (arguments.get("scaling") or query.shape[3] ** -0.5)
        if softcap := arguments.get("softcap"):
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~_visible(window, query.device), float("-inf"))
        return (scores.softmax(dim=-1) @ values).to(query.dtype).transpose(1, 2).contiguous()

    def checked_layers(self) -> list[LayerAttention]:
        count = self._config.num_hidden_layers
        if sorted(self._layers) != list(range(count)):
            raise _refusal(
                self._config,
                f"{len(self._layers)} of {count} layers attend by transformers' attention "
                "interface",
            )
        for index, layer in self._layers.items():
            if layer.num_calls > 1:
                raise _refusal(self._config, f"layer {index} attends {layer.num_calls} times")
        return [self._layers[index] for index in range(count)]

    def _check(self, module: Any, arguments: dict[str, Any]) -> None:
        if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
            raise _refusal(self._config, "the checkpoint's attention is not causal")
        for name, value in arguments.items():
            if name in _KNOWN or name in _WITHOUT_MEANING or value is None or value is False:
                continue
            raise _refusal(self._config, f"attention has an argument '{name}' that is not known")


def _visible(window: int, device: torch.device) -> Tensor:
    at = torch.arange(_FIRST + _SECOND, device=device)
    queries, keys = at[:, None], at[None, :]
    visible = (keys <= queries) & ((keys >= _FIRST) == (queries >= _FIRST))
    return visible & (keys > queries - window) if window else visible
