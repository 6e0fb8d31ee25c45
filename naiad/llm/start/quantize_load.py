"""Which matrices of a model are quantized, by whom, and with which kernels: decided before its
weights are loaded.

In:  config.json and EngineSettings. Out: QuantizedLoading for a checkpoint that is quantized,
     RoundedLayers for one that is not, or neither; and a line that says what was chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.load_weights import QuantizedLoading
from naiad.llm.engine_settings import ROUNDED, EngineSettings
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.decoder_weights import (
    MATRICES,
    LayerWeights,
    Linear,
    layer_shapes,
)
from naiad.llm.quantization.find_format import find_format
from naiad.llm.quantization.linears import CpuLinears, LinearBuilder
from naiad.llm.quantization.matrix import QuantizedMatrix, WeightKind
from naiad.llm.quantization.round_matrix import GROUPS, round_fp8, round_integers
from naiad.llm.start.rounding_cache import RoundingCache

WIDE_SHARE = 8
"""One part in this many of the device's memory may hold 16-bit copies of int4 matrices."""
Rounding = Callable[[Tensor], QuantizedMatrix]


def round_int4(weight: Tensor) -> QuantizedMatrix:
    """In the largest groups that divide the inputs."""
    group = next((size for size in GROUPS if weight.shape[1] % size == 0), None)
    if group is None:
        size = weight.shape[1]
        raise invalid_arg(
            f"quantization is 'int4', but a matrix has {size} inputs, which {GROUPS[-1]} does "
            "not divide; int8 works"
        )
    return round_integers(weight, WeightKind.INT4, group, is_symmetric=False)


ROUNDINGS: dict[str, Rounding] = {
    "fp8": round_fp8,
    "int8": partial(round_integers, kind=WeightKind.INT8, group=0, is_symmetric=True),
    "int4": round_int4,
}


class RoundedLayers:
    """Rounds each layer as it is loaded, or takes its matrices from the cache. `RoundedSource` of
    load_weights."""

    def __init__(
        self, rounding: Rounding, builder: LinearBuilder, cache: RoundingCache | None
    ) -> None:
        self._rounding = rounding
        self._builder = builder
        self._cache = cache
        self._num_layers = 0

    @property
    def is_cached(self) -> bool:
        return self._cache is not None and self._cache.is_complete

    def read_layer(self, layer: int, biases: dict[str, Tensor]) -> dict[str, Linear]:
        assert self._cache is not None
        matrices = self._cache.read_layer(layer)
        linears = {}
        for name in MATRICES:
            self._builder.check(name, matrices[name])
            linears[name] = self._builder.build(matrices[name], biases.get(name))
        return linears

    def round_layer(self, layer: LayerWeights) -> None:
        matrices = {}
        for name in MATRICES:
            linear: Linear = getattr(layer, name)
            matrices[name] = self._rounding(linear.weight)
            self._builder.check(name, matrices[name])
            setattr(layer, name, self._builder.build(matrices[name], linear.bias))
        if self._cache is not None:
            self._cache.keep_layer(self._num_layers, matrices)
        self._num_layers += 1


class QuantizationPlan:
    """`loading` and `rounded` are arguments of load_weights."""

    def __init__(
        self,
        source: str,
        builder: LinearBuilder,
        loading: QuantizedLoading | None,
        rounded: RoundedLayers | None,
    ) -> None:
        self._source = source
        self._builder = builder
        self.loading = loading
        self.rounded = rounded

    def describe(self) -> str:
        """After the weights are loaded: their format and the kernels that multiply them."""
        kernels = "; ".join(
            f"{name} ({count} matrices)" for name, count in self._builder.kernels.items()
        )
        return f"{self._source}: {kernels or 'no matrix is quantized'}"


def plan_quantization(
    raw: dict[str, Any],
    folder: Path,
    config: DecoderConfig,
    settings: EngineSettings,
    device: torch.device,
    dtype: torch.dtype,
    cache: RoundingCache | None = None,
) -> QuantizationPlan | None:
    """Raises NaiadError."""
    found = find_format(raw, folder)
    wanted = settings.quantization
    if found is None:
        if wanted == "auto":
            return None
        if wanted not in ROUNDINGS:
            raise invalid_arg(
                f"quantization is '{wanted}', but config.json has no quantization_config; "
                f"expected {', '.join(ROUNDED)}"
            )
        return plan_rounding(config, settings, device, dtype, cache)
    if wanted in ROUNDED and wanted not in found.description:
        raise invalid_arg(
            f"quantization is '{wanted}', but the checkpoint is quantized already "
            f"({found.description}); leave it out"
        )
    builder = build_linears(config, settings, device, dtype)
    return QuantizationPlan(found.description, builder, QuantizedLoading(found, builder), None)


def plan_rounding(
    config: DecoderConfig,
    settings: EngineSettings,
    device: torch.device,
    dtype: torch.dtype,
    cache: RoundingCache | None = None,
) -> QuantizationPlan:
    builder = build_linears(config, settings, device, dtype)
    rounded = RoundedLayers(ROUNDINGS[settings.quantization], builder, cache)
    when = "rounded at an earlier start" if rounded.is_cached else "rounded at load"
    return QuantizationPlan(f"{settings.quantization}, {when}", builder, None, rounded)


def build_linears(
    config: DecoderConfig, settings: EngineSettings, device: torch.device, dtype: torch.dtype
) -> LinearBuilder:
    if device.type != "cuda" and not settings.use_triton_interpreter:
        return CpuLinears(dtype)
    from naiad.llm.kernels.gpu_linears import (
        GpuLinears,  # triton is there only with torch's CUDA builds
    )

    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)
    return GpuLinears(capability, dtype, _keeps_wide(config, settings, device, dtype))


def _keeps_wide(
    config: DecoderConfig, settings: EngineSettings, device: torch.device, dtype: torch.dtype
) -> bool:
    if settings.keep_wide_weights is not None or device.type != "cuda":
        return bool(settings.keep_wide_weights)
    shapes = layer_shapes(config)
    values = config.num_layers * sum(
        shapes[f"{name}.weight"][0] * shapes[f"{name}.weight"][1] for name in MATRICES
    )
    _, total = torch.cuda.mem_get_info(device)
    return values * dtype.itemsize * WIDE_SHARE <= total
