"""A checkpoint's tensors -> DecoderWeights: merged, rearranged and converted, layer by layer,
straight on the device.

Rule: every tensor's shape is checked against the config before it is used; a mismatch names the
      tensor, what it has and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import (
    MATRICES,
    DecoderWeights,
    LayerWeights,
    Linear,
    assemble,
    assemble_layer,
    layer_shapes,
    outer_shapes,
)
from naiad.llm.models.family import Family
from naiad.llm.quantization.format import QuantizationFormat
from naiad.llm.quantization.linears import LinearBuilder, Part, join
from naiad.llm.quantization.matrix import QuantizedMatrix

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all)."""
Arrange = Callable[[DecoderConfig, Tensor], Tensor]


class QuantizedLoading(msgspec.Struct, frozen=True):
    """How a quantized checkpoint's matrices become Linears."""

    format: QuantizationFormat
    builder: LinearBuilder


class RoundedSource(Protocol):
    """The matrices of a plain checkpoint that is quantized as it is loaded."""

    @property
    def is_cached(self) -> bool:
        """True if an earlier start has rounded the matrices: then they are not read from the
        checkpoint."""
        ...

    def read_layer(self, layer: int, biases: dict[str, Tensor]) -> dict[str, Linear]: ...

    def round_layer(self, layer: LayerWeights) -> None:
        """Replaces the matrices of a layer that was just loaded."""


def load_weights(
    config: DecoderConfig,
    family: Family,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress | None = None,
    loading: QuantizedLoading | None = None,
    rounded: RoundedSource | None = None,
    make_reader: ReaderMaker | None = None,
) -> DecoderWeights:
    """`make_reader` makes the reader of a part of the model (shard_reader.py)."""
    reader = (make_reader or WeightReader)(config, family, source, device, dtype, loading)
    config = reader.own_config
    layers: list[LayerWeights] = []
    head = reader.read_head()
    wanted = {
        key: shape
        for key, shape in reader.outer_shapes().items()
        if head is None or key != "head.weight"
    }
    outer = {key: reader.read_outer(key, shape) for key, shape in wanted.items()}
    for layer in range(config.num_layers):
        shapes = layer_shapes(config)
        linears: dict[str, Linear] = {}
        if loading is not None:
            linears = {module: reader.read_linear(layer, module, shapes) for module in MATRICES}
        elif rounded is not None and rounded.is_cached:
            biases = {
                module: reader.read_layer(layer, f"{module}.bias", shapes[f"{module}.bias"])
                for module in MATRICES
                if f"{module}.bias" in shapes
            }
            linears = rounded.read_layer(layer, biases)
        if linears:
            shapes = {
                key: shape for key, shape in shapes.items() if key.rsplit(".", 1)[0] not in MATRICES
            }
        layers.append(
            assemble_layer(
                config,
                {key: reader.read_layer(layer, key, shape) for key, shape in shapes.items()},
                linears,
            )
        )
        if rounded is not None and not rounded.is_cached:
            rounded.round_layer(layers[-1])
        if progress is not None:
            progress(layer + 1, config.num_layers)
    return assemble(config, outer, layers, head)


class WeightReader:
    def __init__(
        self,
        config: DecoderConfig,
        family: Family,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        loading: QuantizedLoading | None,
    ) -> None:
        self.config = config
        self.family = family
        self.source = source
        self.names = source.names()
        self.device = device
        self.dtype = dtype
        self.loading = loading

    @property
    def own_config(self) -> DecoderConfig:
        """The config of what is read."""
        return self.config

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        return outer_shapes(self.config)

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

    def read_head(self) -> Linear | None:
        """A quantized one; None: it is read as any other tensor."""
        loading, module = self.loading, self.family.outer_names["head"]
        if loading is None or self.config.tie_embeddings:
            return None
        matrix = loading.format.read(self.source, self.names, module)
        if matrix is None:
            return None
        self._check_shape(module, matrix, (self.config.vocab_size, self.config.hidden_size))
        matrix = self._own_head(module, matrix)
        loading.builder.check(module, matrix)
        return join([(matrix, None)], loading.builder)

    def _own_head(self, module: str, matrix: QuantizedMatrix) -> QuantizedMatrix:
        return matrix

    def read_linear(self, layer: int, module: str, shapes: dict[str, tuple[int, ...]]) -> Linear:
        assert self.loading is not None
        parts = self._read_parts(layer, module, shapes)
        prefix = self.family.layer_prefix.format(layer)
        for name, (matrix, _) in zip(self.family.layer_names[module], parts, strict=True):
            if isinstance(matrix, QuantizedMatrix):
                self.loading.builder.check(f"{prefix}{name}", matrix)
        return join(parts, self.loading.builder)

    def _read_parts(
        self, layer: int, module: str, shapes: dict[str, tuple[int, ...]]
    ) -> list[Part]:
        """Returns the matrices of a module, whose rows belong one under the other."""
        assert self.loading is not None
        prefix = self.family.layer_prefix.format(layer)
        arrange = self.family.arrange.get(module)
        outputs, inputs = shapes[f"{module}.weight"]
        parts: list[Part] = []
        for name in self.family.layer_names[module]:
            own = f"{prefix}{name}"
            matrix = self.loading.format.read(self.source, self.names, own)
            weight = matrix if matrix is not None else self._get(f"{own}.weight", (inputs,))
            bias = self._get(f"{own}.bias", ()) if f"{module}.bias" in shapes else None
            parts.append((weight, bias))
        parts = [_arranged(part, self.config, arrange) for part in parts]
        rows = [_num_outputs(matrix) for matrix, _ in parts]
        if sum(rows) != outputs:
            names = ", ".join(f"{prefix}{name}" for name in self.family.layer_names[module])
            raise invalid_arg(
                f"modules {names} have {sum(rows)} rows together, expected {outputs} for {module}"
            )
        for name, (matrix, _) in zip(self.family.layer_names[module], parts, strict=True):
            if isinstance(matrix, QuantizedMatrix):
                self._check_shape(f"{prefix}{name}", matrix, (matrix.num_outputs, inputs))
        return parts

    def _check_shape(self, module: str, matrix: QuantizedMatrix, expected: tuple[int, int]) -> None:
        found = (matrix.num_outputs, matrix.num_inputs)
        if found != expected:
            raise invalid_arg(
                f"module '{module}' has {found[0]} outputs and {found[1]} inputs, expected "
                f"{expected[0]} and {expected[1]}"
            )

    def _get(self, name: str, tail: tuple[int, ...]) -> Tensor:
        if name not in self.names:
            raise invalid_arg(f"the checkpoint has no tensor '{name}'")
        tensor = self.source.get(name)
        if tuple(tensor.shape[1:]) != tail:
            raise invalid_arg(
                f"tensor '{name}' has shape {list(tensor.shape)}, expected {list(tail)} after "
                "the first number"
            )
        return tensor.to(self.device, self.dtype)

    def _find(self, prefix: str, alternatives: str, kind: str) -> str:
        """Names that differ between a family's generations are written a|b."""
        names = [f"{prefix}{name}.{kind}" for name in alternatives.split("|")]
        return next((name for name in names if name in self.names), names[0])

    def _merge(
        self, key: str, names: list[str], shape: tuple[int, ...], arrange: Arrange | None
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
                    f"tensor '{name}' has shape {list(part.shape)}, which does not fit {key} of "
                    f"shape {list(shape)}"
                )
            part = part if arrange is None else arrange(self.config, part)
            out[start : start + part.shape[0]].copy_(part, non_blocking=True)
            start += part.shape[0]
        if start != shape[0]:
            raise invalid_arg(
                f"tensors {', '.join(names)} have {start} rows together, expected {shape[0]} for "
                f"{key}"
            )
        return out


ReaderMaker = Callable[
    [
        DecoderConfig,
        Family,
        TensorSource,
        torch.device,
        torch.dtype,
        QuantizedLoading | None,
    ],
    WeightReader,
]


def _num_outputs(matrix: QuantizedMatrix | Tensor) -> int:
    return matrix.num_outputs if isinstance(matrix, QuantizedMatrix) else int(matrix.shape[0])


def _arranged(part: Part, config: DecoderConfig, arrange: Arrange | None) -> Part:
    if arrange is None:
        return part
    matrix, bias = part
    if isinstance(matrix, QuantizedMatrix):
        rows = arrange(config, torch.arange(matrix.num_outputs, device=matrix.values.device))
        matrix = matrix.rearranged(rows)
    else:
        matrix = arrange(config, matrix)
    return matrix, None if bias is None else arrange(config, bias)
