"""Reads one rank's part of a checkpoint: rows of qkv and up, columns of o and down, its share of
the vocabulary, and all norms.

Of a plain checkpoint only these bytes are read. A quantized matrix is read whole and cut then,
since each format packs it in its own way.
Rule: a bias of o or down belongs to rank 0, because the ranks' products are summed.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.load_weights import QuantizedLoading, WeightReader
from naiad.llm.checkpoint.source import TensorSource
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import layer_shapes
from naiad.llm.models.family import Family
from naiad.llm.parallel.shard import CUT_BY_COLUMNS, CUT_BY_ROWS, Range, Shard
from naiad.llm.quantization.linears import Part
from naiad.llm.quantization.matrix import QuantizedMatrix


class PartSource(Protocol):
    """A source that can read parts of tensors."""

    def shape(self, name: str) -> list[int]: ...

    def get_rows(self, name: str, ranges: list[Range]) -> Tensor: ...

    def get_columns(self, name: str, start: int, end: int) -> Tensor: ...


class WholeTensors:
    """`PartSource` of a source that reads whole tensors. It keeps the last one."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self._last: tuple[str, Tensor] | None = None

    def shape(self, name: str) -> list[int]:
        return list(self._get(name).shape)

    def get_rows(self, name: str, ranges: list[Range]) -> Tensor:
        return torch.cat([self._get(name)[start:end] for start, end in ranges])

    def get_columns(self, name: str, start: int, end: int) -> Tensor:
        return self._get(name)[:, start:end]

    def _get(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            self._last = (name, self._source.get(name))
        return self._last[1]


class ShardReader(WeightReader):
    def __init__(
        self,
        config: DecoderConfig,
        family: Family,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        loading: QuantizedLoading | None,
        *,
        shard: Shard,
    ) -> None:
        super().__init__(config, family, source, device, dtype, loading)
        self._shard = shard
        has_parts = hasattr(source, "get_rows")
        self._parts: PartSource = source if has_parts else WholeTensors(source)  # type: ignore[assignment]

    @property
    def own_config(self) -> DecoderConfig:
        return self._shard.config(self.config)

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        num_tokens = self._shard.num_tokens(self.config)
        return {
            key: (num_tokens, *shape[1:]) if _is_by_token(key) else shape
            for key, shape in super().outer_shapes().items()
        }

    def read_outer(self, key: str, shape: tuple[int, ...]) -> Tensor:
        if not _is_by_token(key):
            return super().read_outer(key, shape)
        module, kind = key.rsplit(".", 1)
        name = f"{self.family.outer_names[module]}.{kind}"
        self._check(name, key, [self.config.vocab_size, *shape[1:]])
        start, end = self._shard.tokens(self.config)
        out = torch.zeros(shape, device=self.device, dtype=self.dtype)
        if end > start:
            out[: end - start].copy_(self._parts.get_rows(name, [(start, end)]))
        return out

    def read_layer(self, layer: int, key: str, shape: tuple[int, ...]) -> Tensor:
        module, kind = key.rsplit(".", 1)
        if module in CUT_BY_ROWS:
            return self._read_rows(layer, module, kind, shape)
        if module in CUT_BY_COLUMNS and kind == "weight":
            return self._read_columns(layer, module, shape)
        tensor = super().read_layer(layer, key, shape)
        return torch.zeros_like(tensor) if self._is_others_bias(module) else tensor

    def _read_parts(
        self, layer: int, module: str, shapes: dict[str, tuple[int, ...]]
    ) -> list[Part]:
        parts = super()._read_parts(layer, module, layer_shapes(self.config))
        if module in CUT_BY_COLUMNS:
            start, end = self._shard.columns(self.config, module)
            names = self.family.layer_names[module]
            prefix = self.family.layer_prefix.format(layer)
            return [
                (
                    self._cut(f"{prefix}{name}", matrix, start, end),
                    None if bias is None or self._is_others_bias(module) else bias,
                )
                for name, (matrix, bias) in zip(names, parts, strict=True)
            ]
        sizes = [_num_rows(matrix) for matrix, _ in parts]
        wanted = _rows_by_part(self._shard.rows(self.config, module), sizes)
        return [
            _chosen(part, _indices(ranges, self.device))
            for part, ranges in zip(parts, wanted, strict=True)
        ]

    def _cut(
        self, name: str, matrix: QuantizedMatrix | Tensor, start: int, end: int
    ) -> QuantizedMatrix | Tensor:
        if isinstance(matrix, Tensor):
            return matrix[:, start:end].contiguous()
        try:
            return matrix.columns(start, end)
        except ValueError as error:
            raise unsupported(
                f"module '{name}' cannot be split over {self._shard.size} ranks: {error}"
            ) from None

    def _own_head(self, module: str, matrix: QuantizedMatrix) -> QuantizedMatrix:
        if self.config.vocab_size % self._shard.size:
            raise unsupported(
                f"module '{module}' is quantized and has {self.config.vocab_size} rows, which "
                f"{self._shard.size} ranks cannot share equally"
            )
        return matrix.rearranged(_indices([self._shard.tokens(self.config)], matrix.values.device))

    def _read_rows(self, layer: int, module: str, kind: str, shape: tuple[int, ...]) -> Tensor:
        prefix = self.family.layer_prefix.format(layer)
        names = [
            self._find(prefix, alternatives, kind)
            for alternatives in self.family.layer_names[module]
        ]
        sizes = [self._shape(name)[0] for name in names]
        whole = layer_shapes(self.config)[f"{module}.{kind}"]
        for name in names:
            self._check(name, module, [self._shape(name)[0], *whole[1:]])
        if sum(sizes) != whole[0]:
            raise invalid_arg(
                f"tensors {', '.join(names)} have {sum(sizes)} rows together, expected {whole[0]} "
                f"for {module}.{kind}"
            )
        arrange = self.family.arrange.get(module)
        out = torch.empty(shape, device=self.device, dtype=self.dtype)
        start = 0
        wanted = _rows_by_part(self._shard.rows(self.config, module), sizes)
        for name, size, ranges in zip(names, sizes, wanted, strict=True):
            if arrange is not None:
                order = arrange(self.config, torch.arange(size))
                ranges = _runs(order[_indices(ranges, order.device)])
            if ranges:
                part = self._parts.get_rows(name, ranges)
                out[start : start + part.shape[0]].copy_(part)
                start += part.shape[0]
        return out

    def _read_columns(self, layer: int, module: str, shape: tuple[int, ...]) -> Tensor:
        prefix = self.family.layer_prefix.format(layer)
        name = self._find(prefix, self.family.layer_names[module][0], "weight")
        self._check(name, module, list(layer_shapes(self.config)[f"{module}.weight"]))
        out = torch.empty(shape, device=self.device, dtype=self.dtype)
        out.copy_(self._parts.get_columns(name, *self._shard.columns(self.config, module)))
        return out

    def _is_others_bias(self, module: str) -> bool:
        return module in CUT_BY_COLUMNS and self._shard.rank > 0

    def _shape(self, name: str) -> list[int]:
        if name not in self.names:
            raise invalid_arg(f"the checkpoint has no tensor '{name}'")
        return self._parts.shape(name)

    def _check(self, name: str, key: str, expected: list[int]) -> None:
        if self._shape(name) != expected:
            raise invalid_arg(
                f"tensor '{name}' has shape {self._shape(name)}, expected {expected} for {key}"
            )


class RankFileReader(WeightReader):
    """Reads a file that TensorRT-LLM's tools have made for one rank: everything in it is cut
    already, except that the embedding may be whole."""

    def __init__(
        self,
        config: DecoderConfig,
        family: Family,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        loading: QuantizedLoading | None,
        *,
        shard: Shard,
    ) -> None:
        super().__init__(shard.config(config), family, source, device, dtype, loading)
        self._shard = shard

    def outer_shapes(self) -> dict[str, tuple[int, ...]]:
        num_tokens = self._shard.num_tokens(self.config)
        return {
            key: (num_tokens, *shape[1:]) if _is_by_token(key) else shape
            for key, shape in super().outer_shapes().items()
        }

    def read_outer(self, key: str, shape: tuple[int, ...]) -> Tensor:
        if key != "embedding.weight" or f"{self.family.outer_names['embedding']}.weight" not in (
            self.names
        ):
            return super().read_outer(key, shape)
        table = self.source.get(f"{self.family.outer_names['embedding']}.weight")
        if list(table.shape) != [self.config.vocab_size, self.config.hidden_size]:
            return super().read_outer(key, shape)
        start, end = self._shard.tokens(self.config)
        out = torch.zeros(shape, device=self.device, dtype=self.dtype)
        out[: end - start].copy_(table[start:end])
        return out

    def read_layer(self, layer: int, key: str, shape: tuple[int, ...]) -> Tensor:
        tensor = super().read_layer(layer, key, shape)
        is_others = key.endswith(".bias") and key.split(".")[0] in CUT_BY_COLUMNS
        return torch.zeros_like(tensor) if is_others and self._shard.rank > 0 else tensor


def _is_by_token(key: str) -> bool:
    return key.startswith(("embedding.", "head."))


def _num_rows(matrix: QuantizedMatrix | Tensor) -> int:
    return matrix.num_outputs if isinstance(matrix, QuantizedMatrix) else int(matrix.shape[0])


def _rows_by_part(ranges: list[Range], sizes: list[int]) -> list[list[Range]]:
    """Divides ranges of rows of a merged matrix among the tensors that it is merged of."""
    found: list[list[Range]] = []
    first = 0
    for size in sizes:
        cut = [(max(start - first, 0), min(end - first, size)) for start, end in ranges]
        found.append([(start, end) for start, end in cut if start < end])
        first += size
    return found


def _indices(ranges: list[Range], device: torch.device) -> Tensor:
    rows = [torch.arange(start, end, device=device) for start, end in ranges]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64, device=device)


def _runs(rows: Tensor) -> list[Range]:
    """Joins row numbers that follow each other."""
    runs: list[Range] = []
    for row in rows.tolist():
        if runs and runs[-1][1] == row:
            runs[-1] = (runs[-1][0], row + 1)
        else:
            runs.append((row, row + 1))
    return runs


def _chosen(part: Part, rows: Tensor) -> Part:
    matrix, bias = part
    chosen = (
        matrix.rearranged(rows.to(matrix.values.device))
        if isinstance(matrix, QuantizedMatrix)
        else matrix[rows.to(matrix.device)]
    )
    return chosen, None if bias is None else bias[rows.to(bias.device)]
