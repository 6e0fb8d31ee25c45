"""A transformers model of which one layer at a time is on the device: hidden states go in at one
end and come out at the other.

Rule: layers are of the make `model.layers`, with rotary positions; other makes are refused with
      their model_type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.folder import open_folder
from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
from naiad.llm.models import registry

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2")
PREFIX = "model.layers.{}."


class LayeredModel:
    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        raw = open_folder(folder).config
        kind = raw["model_type"]
        if kind not in FAMILIES:
            raise unsupported(
                f"model_type '{kind}' has no recipe for quantization, expected one of "
                f"{', '.join(FAMILIES)}"
            )
        if raw.get("quantization_config") is not None:
            raise invalid_arg(
                f"checkpoint '{folder.name}' is quantized already, expected a plain one"
            )
        checked = registry.FAMILIES[kind].checked_config(raw, f"config.json of '{folder.name}'")
        self.device, self.dtype = device, dtype
        self.source = SafetensorsSource(folder, torch.device("cpu"))
        self._names = self.source.names()
        self._check_layers(folder, checked.num_layers)
        try:
            self.config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            with torch.device("meta"):
                model: Any = transformers.AutoModelForCausalLM.from_config(
                    self.config, dtype=dtype, attn_implementation="sdpa"
                )
        except Exception as error:  # transformers raises whatever a value leads to
            raise invalid_arg(
                f"config.json of '{folder.name}' cannot be used: {type(error).__name__}: {error}"
            ) from error
        self._inner = model.model
        self._check_shapes(folder)
        self._head_name = (
            "lm_head.weight" if "lm_head.weight" in self._names else "model.embed_tokens.weight"
        )
        self._rotary = type(self._inner.rotary_emb)(config=self.config).to(device)
        self.num_layers = len(self._inner.layers)

    def _check_layers(self, folder: Path, num_layers: int) -> None:
        """Before a model of so many layers is made."""
        found = {name.split(".")[2] for name in self._names if name.startswith("model.layers.")}
        if len(found) != num_layers:
            raise invalid_arg(
                f"config.json of '{folder.name}' has {num_layers} layers, and its files have "
                f"{len(found)}"
            )

    def _check_shapes(self, folder: Path) -> None:
        for name, expected in self._inner.state_dict().items():
            shape = self.source.shape(f"model.{name}") if f"model.{name}" in self._names else None
            if shape != list(expected.shape):
                raise invalid_arg(
                    f"tensor 'model.{name}' of '{folder.name}' has shape {shape}, and config.json "
                    f"makes it {list(expected.shape)}"
                )

    def load_layer(self, index: int) -> Any:
        layer = self._inner.layers[index].to_empty(device=self.device)
        prefix = PREFIX.format(index)
        state = {
            name: self.tensor(prefix + name).to(self.device, self.dtype)
            for name in layer.state_dict()
        }
        layer.load_state_dict(state)
        return layer.eval()

    def tensor(self, name: str) -> Tensor:
        if name not in self._names:
            raise invalid_arg(f"the checkpoint has no tensor '{name}'")
        return self.source.get(name)

    def names(self) -> set[str]:
        return self._names

    def embed(self, tokens: Tensor) -> Tensor:
        """[count, length] -> hidden states on the CPU."""
        table = self.tensor("model.embed_tokens.weight")
        hidden = torch.nn.functional.embedding(tokens, table).to(self.dtype)
        return (
            hidden * self.config.hidden_size**0.5 if self.config.model_type == "gemma2" else hidden
        )

    @torch.inference_mode()
    def run(self, layer: Any, hidden: Tensor, batch_size: int) -> Tensor:
        """Hidden states of the next layer; both on the CPU."""
        out = torch.empty_like(hidden)
        positions = torch.arange(hidden.shape[1], device=self.device)[None]
        for start in range(0, hidden.shape[0], batch_size):
            x = hidden[start : start + batch_size].to(self.device)
            angles = self._rotary(x, positions)
            found = layer(
                x,
                attention_mask=None,
                position_ids=positions,
                position_embeddings=angles,
                use_cache=False,
            )
            out[start : start + batch_size] = (
                found[0] if isinstance(found, tuple) else found
            ).cpu()
        return out

    @torch.inference_mode()
    def log_probs(self, hidden: Tensor, head: Tensor | None = None) -> Tensor:
        """Returns the log probabilities of one stretch as float32 [length, vocabulary]."""
        norm = self._inner.norm.to_empty(device=self.device)
        norm.load_state_dict(
            {"weight": self.tensor("model.norm.weight").to(self.device, self.dtype)}
        )
        weight = (self.tensor(self._head_name) if head is None else head).to(
            self.device, self.dtype
        )
        logits = torch.nn.functional.linear(norm(hidden.to(self.device)), weight).float()
        softcap = getattr(self.config, "final_logit_softcapping", None)
        return torch.log_softmax(
            torch.tanh(logits / softcap) * softcap if softcap else logits, dim=-1
        ).cpu()
