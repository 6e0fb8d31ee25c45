"""What an ensemble consists of: its steps, and which step feeds which. It is computed once and read
by every run.

In:  `ensemble_scheduling` of a ModelConfig (build.py). Out: a `Route` per set of requested outputs:
     the steps that it needs, how many tensors each of them waits for, and which steps read what a
     step makes.
"""

from __future__ import annotations

import msgspec

from naiad.core.job import Relay
from naiad.core.reshape import reshaped
from naiad.core.tensor import Tensor

MAX_ROUTES = 256
"""Routes that are remembered. A client that requests ever new sets of outputs slows down only
itself."""


class BatchConversion(msgspec.Struct, frozen=True):
    """How a tensor goes from a model with a batch dimension to a reader without one, or back. The
    client of the ensemble is a reader, too.

    Triton's rule: a shape that fits the reader as it is stays. A tensor without a batch dimension
    that fits becomes a batch of 1; a batch of 1 that does not fit loses its batch dimension.
    """

    dims: list[int]
    """What the reader expects, without a batch dimension."""
    has_batch: bool
    """The reader has a batch dimension, and whoever made the tensor has none."""

    def shape(self, shape: list[int]) -> list[int]:
        fits = len(shape) == len(self.dims) and all(
            dim in (-1, size) for dim, size in zip(self.dims, shape, strict=True)
        )
        if self.has_batch:
            return [1, *shape] if fits else shape
        return shape[1:] if not fits and shape[:1] == [1] else shape

    def apply(self, tensor: Tensor) -> Tensor:
        return Tensor(tensor.name, tensor.datatype, self.shape(tensor.shape), tensor.data)


class Step(msgspec.Struct, frozen=True):
    model_name: str
    model_version: str
    """Empty means the latest."""
    input_map: dict[str, str]
    """The inputs of the model -> tensors of the ensemble."""
    output_map: dict[str, str]
    """The outputs of the model -> tensors of the ensemble."""
    is_decoupled: bool = False
    conversions: dict[str, BatchConversion] = {}
    """The inputs of the model that may get or lose a batch dimension."""


class RouteStep(msgspec.Struct, eq=False):
    number: int
    """The index of the step in the route."""
    step: Step
    outputs: list[str]
    """The outputs that are requested from the model."""
    num_awaited: int
    """The number of tensors that other steps make for this one."""
    output_tensors: dict[str, tuple[str, bool]] = {}
    """The outputs of the model -> the tensor of the ensemble, and whether several read it."""
    num_outputs: int = 0
    """The number of outputs of the ensemble that the step makes."""
    feeds: list[tuple[RouteStep, int]] = []
    """The steps that read what this one makes, and how many tensors each of them reads."""
    sole_successor: RouteStep | None = None
    """The one step that reads everything that this one makes, if that step reads nothing else."""
    is_last: bool = False
    """The step makes every output of the ensemble, and nothing else."""
    relay: Relay | None = None
    """What sends on whole batches of this step, once there has been one."""


class TensorReshape(msgspec.Struct, frozen=True):
    """`reshape` of the ensemble's own inputs and outputs: clients see `dims`, the steps see the
    other shape."""

    source: list[int]
    target: list[int]
    num_batch_dims: int

    def apply(self, tensor: Tensor) -> Tensor:
        shape = reshaped(tensor.shape, self.source, self.target, self.num_batch_dims)
        return Tensor(tensor.name, tensor.datatype, shape, tensor.data)


class Route(msgspec.Struct, frozen=True):
    outputs: list[str]
    steps: list[RouteStep]
    num_made_outputs: int
    """How many of `outputs` a step makes. The others are inputs that are passed through."""
    shared: frozenset[str]
    """Tensors with more than one reader; the response counts as a reader."""
    first: list[RouteStep]
    """The steps that wait for no other."""
    awaited: list[int]
    """Number of tensors of other steps that each step waits for."""


class EnsemblePlan:
    def __init__(
        self,
        name: str,
        version: str,
        steps: list[Step],
        outputs: list[str],
        is_decoupled: bool,
        max_inflight_requests: int,
        input_reshapes: dict[str, TensorReshape] | None = None,
        output_reshapes: dict[str, TensorReshape] | None = None,
        output_conversions: dict[str, BatchConversion] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.steps = steps
        self.outputs = outputs
        self.is_decoupled = is_decoupled
        """A step is decoupled, so the ensemble may respond any number of times."""
        self.max_inflight_requests = max_inflight_requests
        """How many responses of one decoupled step may be on their way through the later steps
        before the step is told to pause."""
        self.input_reshapes = input_reshapes or {}
        self.output_reshapes = output_reshapes or {}
        self.output_conversions = output_conversions or {}
        """The outputs of the ensemble that may get or lose a batch dimension, before they are
        reshaped."""
        self._all = self._find_route(outputs)
        self._routes: dict[tuple[str, ...], Route] = {}

    def route(self, requested: list[str]) -> Route:
        """`requested` empty means all."""
        if not requested:
            return self._all
        key = tuple(requested)
        route = self._routes.get(key)
        if route is None:
            route = self._find_route(requested)
            if len(self._routes) < MAX_ROUTES:
                self._routes[key] = route
        return route

    def _find_route(self, outputs: list[str]) -> Route:
        numbers = self._needed_steps(outputs)
        made = {tensor for number in numbers for tensor in self.steps[number].output_map.values()}
        steps: list[RouteStep] = []
        readers: dict[str, int] = dict.fromkeys(outputs, 1)
        for number in numbers:
            step = self.steps[number]
            steps.append(
                RouteStep(
                    len(steps),
                    step,
                    list(step.output_map),
                    len(made.intersection(step.input_map.values())),
                )
            )
            for tensor in step.input_map.values():
                readers[tensor] = readers.get(tensor, 0) + 1
        shared = frozenset(tensor for tensor, count in readers.items() if count > 1)
        for entry in steps:
            output_map = entry.step.output_map
            entry.output_tensors = {
                name: (tensor, tensor in shared) for name, tensor in output_map.items()
            }
            entry.num_outputs = sum(tensor in outputs for tensor in output_map.values())
            num_read = [
                (reader, len(set(output_map.values()).intersection(reader.step.input_map.values())))
                for reader in steps
            ]
            entry.feeds = [(reader, count) for reader, count in num_read if count]
        if not self.is_decoupled:
            for entry in steps:
                entry.sole_successor = _sole_successor(entry)
                entry.is_last = self._is_last(entry, outputs)
        first = [entry for entry in steps if not entry.num_awaited]
        return Route(
            outputs,
            steps,
            len(made.intersection(outputs)),
            shared,
            first,
            [entry.num_awaited for entry in steps],
        )

    def _is_last(self, entry: RouteStep, outputs: list[str]) -> bool:
        made = list(entry.step.output_map.values())
        return (
            not entry.feeds
            and not self.output_reshapes
            and not self.output_conversions
            and len(set(made)) == len(made)
            and sorted(made) == sorted(outputs)
        )

    def _needed_steps(self, outputs: list[str]) -> list[int]:
        """The steps that contribute to these outputs; the others need not run."""
        needed_tensors = set(outputs)
        needed: set[int] = set()
        is_growing = True
        while is_growing:
            is_growing = False
            for number, step in enumerate(self.steps):
                if number not in needed and not needed_tensors.isdisjoint(step.output_map.values()):
                    needed.add(number)
                    needed_tensors.update(step.input_map.values())
                    is_growing = True
        return sorted(needed)


def _sole_successor(entry: RouteStep) -> RouteStep | None:
    if len(entry.feeds) != 1 or entry.num_outputs:
        return None
    (reader, count), made = entry.feeds[0], list(entry.step.output_map.values())
    if reader.step.conversions:
        return None
    return reader if count == len(reader.step.input_map) and len(set(made)) == len(made) else None
