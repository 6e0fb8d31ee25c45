"""A checkpoint's tensors -> DecoderWeights: merged, rearranged and converted, layer by layer,
straight on the device.

Rule: every tensor's shape is checked against the config before it is used; a mismatch names the
      tensor, what it has and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import DecoderWeights, assemble, layer_shapes, outer_shapes
from naiad.llm.models.family import Family

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all)."""


def load_weights(
    config: DecoderConfig,
    family: Family,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
) -> DecoderWeights:
    reader = _Reader(config, family, source, device, dtype)
    layers: list[dict[str, Tensor]] = []
    outer = {key: reader.read_outer(key, shape) for key, shape in outer_shapes(config).items()}
    for layer in range(config.num_layers):
        layers.append(
            {
                key: reader.read_layer(layer, key, shape)
                for key, shape in layer_shapes(config).items()
            }
        )
        if progress is not None:
            progress(layer + 1, config.num_layers)
    return assemble(config, outer, layers)


class _Reader:
    def __init__(
        self,
        config: DecoderConfig,
        family: Family,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.family = family
        self.source = source
        self.names = source.names()
        self.device = device
        self.dtype = dtype

    def read_outer(self, key: str, shape: tuple[int, ...]) -> Tensor:
        module, kind = key.rsplit(".", 1)
        return self._merge(key, [f"{self.family.outer_names[module]}.{kind}"], shape, None)

    def read_layer(self, layer: int, key: str, shape: tuple[int, ...]) -> Tensor:
        module, kind = key.rsplit(".", 1)
        prefix = self.family.layer_prefix.format(layer)
        names = [
            self._find(prefix, alternatives, kind)
            for alternatives in self.family.layer_names[module]
        ]
        return self._merge(key, names, shape, self.family.arrange.get(module))

    def _find(self, prefix: str, alternatives: str, kind: str) -> str:
        """Names that differ between a family's generations are written a|b."""
        names = [f"{prefix}{name}.{kind}" for name in alternatives.split("|")]
        return next((name for name in names if name in self.names), names[0])

    def _merge(
        self,
        key: str,
        names: list[str],
        shape: tuple[int, ...],
        arrange: Callable[[DecoderConfig, Tensor], Tensor] | None,
    ) -> Tensor:
        missing = [name for name in names if name not in self.names]
        if missing:
            raise invalid_arg(f"the checkpoint has no tensor '{missing[0]}'")
        out = torch.empty(shape, device=self.device, dtype=self.dtype)
        start = 0
        for name in names:
            part = self.source.get(name)
            if part.shape[1:] != out.shape[1:] or start + part.shape[0] > shape[0]:
                raise invalid_arg(
                    f"tensor '{name}' has shape {list(part.shape)}, which does not fit {key} of shape {list(shape)}"
                )
            part = part if arrange is None else arrange(self.config, part)
            out[start : start + part.shape[0]].copy_(part, non_blocking=True)
            start += part.shape[0]
        if start != shape[0]:
            raise invalid_arg(
                f"tensors {', '.join(names)} have {start} rows together, expected {shape[0]} for {key}"
            )
        return out
