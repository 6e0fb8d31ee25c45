"""Defines the search space: the dimensions of each model with the values to try, and the loads.

A point has one index per dimension.
Rule: searches see only indices; variant.py applies the values to a configuration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from naiad.analyze.measurement import Stage
from naiad.analyze.settings import AnalyzedModel, ProfileOptions
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.settings.option import OptionError

_LLM_SEQUENCES = [16, 32, 64, 128, 256]
_LLM_TOKENS = [512, 1024, 2048, 4096, 8192]


class Dimension(msgspec.Struct, frozen=True):
    model: str
    name: str
    values: tuple[Any, ...]
    """Values to try, sorted, so that neighbours in the list are similar configurations."""


Point = tuple[int, ...]


class SpaceTrial(msgspec.Struct, frozen=True):
    """One measurement to make. An empty point is the default configuration."""

    point: Point
    concurrency: int
    batch_size: int = 1
    stage: Stage = "search"
    round: int = 0
    """Number of the round of the comparison, from 1; 0 in the other stages."""


class Space(msgspec.Struct, frozen=True):
    dimensions: tuple[Dimension, ...]
    concurrencies: tuple[int, ...]
    """Concurrencies set by the user, or those that brute force measures."""
    batch_sizes: tuple[int, ...]
    min_concurrency: int
    max_concurrency: int
    has_fixed_concurrencies: bool = False

    @property
    def num_points(self) -> int:
        return math.prod(len(dimension.values) for dimension in self.dimensions)

    @property
    def size(self) -> int:
        """Number of measurements that brute force makes, without the default configuration."""
        return self.num_points * len(self.concurrencies) * len(self.batch_sizes)

    def points(self) -> Iterator[Point]:
        return itertools.product(*(range(len(dimension.values)) for dimension in self.dimensions))

    def values(self, point: Point) -> dict[str, dict[str, Any]]:
        """Returns the values of a point, by model and dimension."""
        values: dict[str, dict[str, Any]] = {}
        for dimension, index in zip(self.dimensions, point, strict=False):
            values.setdefault(dimension.model, {})[dimension.name] = dimension.values[index]
        return values

    def value(self, point: Point, name: str, default: float) -> float:
        """Returns the largest value of a dimension over all models."""
        pairs = zip(self.dimensions, point, strict=False)
        return max(
            (dimension.values[index] for dimension, index in pairs if dimension.name == name),
            default=default,
        )

    def formula_concurrency(self, point: Point) -> int:
        """Returns 2 x batch size x instances, rounded up to a power of two.

        This many requests keep all instances busy with full batches while the next batches wait.
        """
        batch = self.value(point, "max_batch_size", self.value(point, "parameters.max_num_seqs", 1))
        target = 2 * int(batch) * int(self.value(point, "instance_count", 1))
        if self.has_fixed_concurrencies:
            return min(
                self.concurrencies,
                key=lambda concurrency: (concurrency < target, abs(concurrency - target)),
            )
        power = 1 << max(0, math.ceil(math.log2(max(1, target))))
        return max(self.min_concurrency, min(self.max_concurrency, power))


def build_space(
    options: ProfileOptions, specs: Sequence[AnalyzedModel], configs: dict[str, ModelConfig]
) -> Space:
    """Builds the search space. Raises OptionError.

    `configs` includes composing models, which are varied as well. An ensemble itself is not varied.
    """
    by_name = {spec.name: spec for spec in specs}
    dimensions: list[Dimension] = []
    for name, config in configs.items():
        dimensions += _dimensions(options, by_name.get(name, AnalyzedModel(name=name)), config)
    concurrencies = sorted(
        {value for spec in specs for value in spec.concurrency} or set(options.concurrency)
    )
    low, high = options.run_config_search_min_concurrency, options.run_config_search_max_concurrency
    batch_sizes = sorted(
        {value for spec in specs for value in spec.batch_sizes} or set(options.batch_sizes) or {1}
    )
    return Space(
        () if options.run_config_search_disable else tuple(dimensions),
        tuple(concurrencies or powers(low, high)),
        tuple(batch_sizes),
        low,
        high,
        bool(concurrencies),
    )


def powers(low: int, high: int) -> list[int]:
    """Returns the bounds and the powers of two between them. Raises OptionError."""
    if high < low:
        raise OptionError(f"the search range from {low} to {high} is empty")
    inner = [1 << exponent for exponent in range(31) if low < 1 << exponent < high]
    return sorted({low, *inner, high})


def _dimensions(
    options: ProfileOptions, spec: AnalyzedModel, config: ModelConfig
) -> list[Dimension]:
    if spec.model_config_parameters:
        return _explicit_dimensions(spec)
    if config.HasField("ensemble_scheduling"):
        return []
    if options.model_type == "llm" or config.backend in ("llm", "vllm"):
        sequences = options.run_config_search_max_num_seqs or _LLM_SEQUENCES
        tokens = options.run_config_search_max_num_batched_tokens or _LLM_TOKENS
        dimensions = [
            Dimension(spec.name, "parameters.max_num_seqs", tuple(sorted(sequences))),
            Dimension(spec.name, "parameters.max_num_batched_tokens", tuple(sorted(tokens))),
        ]
        precisions = {
            "quantization": options.run_config_search_quantization,
            "kv_cache_dtype": options.run_config_search_kv_cache_dtype,
        }
        return dimensions + [
            Dimension(spec.name, f"parameters.{name}", tuple(values))
            for name, values in precisions.items()
            if values
        ]
    low, high = (
        options.run_config_search_min_instance_count,
        options.run_config_search_max_instance_count,
    )
    if high < low:
        raise OptionError(
            f"--run-config-search-max-instance-count {high} is less than"
            f" --run-config-search-min-instance-count {low}"
        )
    dimensions = [Dimension(spec.name, "instance_count", tuple(range(low, high + 1)))]
    if config.max_batch_size > 0:
        sizes = powers(
            options.run_config_search_min_model_batch_size,
            options.run_config_search_max_model_batch_size,
        )
        dimensions.append(Dimension(spec.name, "max_batch_size", tuple(sizes)))
        if options.run_config_search_max_queue_delay:
            delays = tuple(sorted(options.run_config_search_max_queue_delay))
            dimensions.append(Dimension(spec.name, "queue_delay_us", delays))
    return dimensions


def _explicit_dimensions(spec: AnalyzedModel) -> list[Dimension]:
    """Reads model_config_parameters: a list of values is a dimension, a single value is fixed."""
    dimensions: list[Dimension] = []
    for key, value in spec.model_config_parameters.items():
        if key == "instance_group":
            counts: list[int] = []
            for group in _tuple(value):
                counts += _tuple(group.get("count", 1))
            dimensions.append(Dimension(spec.name, "instance_count", tuple(sorted(counts))))
        elif key == "dynamic_batching" and isinstance(value, dict):
            for name, values in value.items():
                dimension = (
                    "queue_delay_us"
                    if name == "max_queue_delay_microseconds"
                    else f"dynamic_batching.{name}"
                )
                dimensions.append(Dimension(spec.name, dimension, _tuple(values)))
        elif key == "parameters" and isinstance(value, dict):
            dimensions += [
                Dimension(spec.name, f"parameters.{name}", _tuple(_string_values(values)))
                for name, values in value.items()
            ]
        else:
            dimensions.append(Dimension(spec.name, key, _tuple(value)))
    return dimensions


def _string_values(value: Any) -> Any:
    """Unwraps {string_value: x}, which is how Triton writes a parameter."""
    return value["string_value"] if isinstance(value, dict) and "string_value" in value else value


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else (value,)
