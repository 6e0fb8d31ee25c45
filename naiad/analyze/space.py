"""What can be varied: for each model its dimensions with the values to try, and the loads to
measure them under.

A point is one index into each dimension. Rule: searches know only indices; what a value means is
variant.py's business.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from naiad.analyze.settings import ModelSpec, ProfileOptions
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.settings.option import OptionError

_LLM_SEQUENCES = [16, 32, 64, 128, 256]
_LLM_TOKENS = [512, 1024, 2048, 4096, 8192]


class Dimension(msgspec.Struct, frozen=True):
    model: str
    name: str
    values: tuple[Any, ...]
    """In order: a neighbour in the list is a neighbour in the model."""


Point = tuple[int, ...]


class Trial(msgspec.Struct, frozen=True):
    """One measurement to make. An empty point is the configuration as it is."""

    point: Point
    concurrency: int
    batch_size: int = 1


class Space(msgspec.Struct, frozen=True):
    dimensions: tuple[Dimension, ...]
    concurrencies: tuple[int, ...]
    """Those to measure, when they are given or for brute force."""
    batch_sizes: tuple[int, ...]
    min_concurrency: int
    max_concurrency: int
    has_given_concurrencies: bool = False

    @property
    def num_points(self) -> int:
        return math.prod(len(dimension.values) for dimension in self.dimensions)

    @property
    def size(self) -> int:
        """Measurements that brute force makes, the default configuration not counted."""
        return self.num_points * len(self.concurrencies) * len(self.batch_sizes)

    def points(self) -> Iterator[Point]:
        return itertools.product(*(range(len(dimension.values)) for dimension in self.dimensions))

    def values(self, point: Point) -> dict[str, dict[str, Any]]:
        """By model."""
        found: dict[str, dict[str, Any]] = {}
        for dimension, index in zip(self.dimensions, point, strict=False):
            found.setdefault(dimension.model, {})[dimension.name] = dimension.values[index]
        return found

    def value(self, point: Point, name: str, default: float) -> float:
        """The largest of that name over the models."""
        pairs = zip(self.dimensions, point, strict=False)
        return max(
            (dimension.values[index] for dimension, index in pairs if dimension.name == name),
            default=default,
        )

    def formula_concurrency(self, point: Point) -> int:
        """Enough to keep all instances busy with full batches while the next batches wait: 2 x
        batch x instances."""
        batch = self.value(point, "max_batch_size", self.value(point, "parameters.max_num_seqs", 1))
        wanted = 2 * int(batch) * int(self.value(point, "instance_count", 1))
        if self.has_given_concurrencies:
            return min(
                self.concurrencies,
                key=lambda concurrency: (concurrency < wanted, abs(concurrency - wanted)),
            )
        power = 1 << max(0, math.ceil(math.log2(max(1, wanted))))
        return max(self.min_concurrency, min(self.max_concurrency, power))


def build_space(
    options: ProfileOptions, specs: Sequence[ModelSpec], configs: dict[str, ModelConfig]
) -> Space:
    """`configs` holds also composing models, which are varied too; an ensemble itself is not.
    Raises OptionError."""
    by_name = {spec.name: spec for spec in specs}
    dimensions: list[Dimension] = []
    for name, config in configs.items():
        dimensions += _dimensions(options, by_name.get(name, ModelSpec(name=name)), config)
    given = sorted(
        {value for spec in specs for value in spec.concurrency} or set(options.concurrency)
    )
    low, high = options.run_config_search_min_concurrency, options.run_config_search_max_concurrency
    batch_sizes = sorted(
        {value for spec in specs for value in spec.batch_sizes} or set(options.batch_sizes) or {1}
    )
    return Space(
        () if options.run_config_search_disable else tuple(dimensions),
        tuple(given or powers(low, high)),
        tuple(batch_sizes),
        low,
        high,
        bool(given),
    )


def powers(low: int, high: int) -> list[int]:
    """Powers of two within the bounds, and both bounds."""
    if high < low:
        raise OptionError(f"a search from {low} to {high} has nothing in it")
    inner = [1 << exponent for exponent in range(31) if low < 1 << exponent < high]
    return sorted({low, *inner, high})


def _dimensions(options: ProfileOptions, spec: ModelSpec, config: ModelConfig) -> list[Dimension]:
    if spec.model_config_parameters:
        return _given_dimensions(spec)
    if config.HasField("ensemble_scheduling"):
        return []
    if options.model_type == "llm" or config.backend in ("llm", "vllm"):
        sequences = options.run_config_search_max_num_seqs or _LLM_SEQUENCES
        tokens = options.run_config_search_max_num_batched_tokens or _LLM_TOKENS
        return [
            Dimension(spec.name, "parameters.max_num_seqs", tuple(sorted(sequences))),
            Dimension(spec.name, "parameters.max_num_batched_tokens", tuple(sorted(tokens))),
        ]
    low, high = (
        options.run_config_search_min_instance_count,
        options.run_config_search_max_instance_count,
    )
    if high < low:
        raise OptionError(
            f"--run-config-search-max-instance-count {high} is smaller than the least, {low}"
        )
    found = [Dimension(spec.name, "instance_count", tuple(range(low, high + 1)))]
    if config.max_batch_size > 0:
        sizes = powers(
            options.run_config_search_min_model_batch_size,
            options.run_config_search_max_model_batch_size,
        )
        found.append(Dimension(spec.name, "max_batch_size", tuple(sizes)))
        if options.run_config_search_max_queue_delay:
            found.append(
                Dimension(
                    spec.name,
                    "queue_delay_us",
                    tuple(sorted(options.run_config_search_max_queue_delay)),
                )
            )
    return found


def _given_dimensions(spec: ModelSpec) -> list[Dimension]:
    """model_config_parameters: every list of values is a dimension; single values are fixed."""
    found: list[Dimension] = []
    for key, given in spec.model_config_parameters.items():
        if key == "instance_group":
            counts = [
                entry.get("count", 1) for entry in (given if isinstance(given, list) else [given])
            ]
            flat = [
                value
                for count in counts
                for value in (count if isinstance(count, list) else [count])
            ]
            found.append(Dimension(spec.name, "instance_count", tuple(sorted(flat))))
        elif key == "dynamic_batching" and isinstance(given, dict):
            for name, values in given.items():
                dimension = (
                    "queue_delay_us"
                    if name == "max_queue_delay_microseconds"
                    else f"dynamic_batching.{name}"
                )
                found.append(Dimension(spec.name, dimension, _tuple(values)))
        elif key == "parameters" and isinstance(given, dict):
            found += [
                Dimension(spec.name, f"parameters.{name}", _tuple(_string_values(values)))
                for name, values in given.items()
            ]
        else:
            found.append(Dimension(spec.name, key, _tuple(given)))
    return found


def _string_values(given: Any) -> Any:
    """Triton's form of a parameter is {string_value: x}."""
    return given["string_value"] if isinstance(given, dict) and "string_value" in given else given


def _tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list) else (given,)
