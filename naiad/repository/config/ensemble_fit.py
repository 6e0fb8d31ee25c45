"""Whether an ensemble fits its models: the rules that need the models' completed configurations.

In:  the ensemble, and its models by name. Out: every broken rule; and whether the ensemble is
     decoupled, which depends on its models.
Rule: called when all models are known: when the ensemble is loaded, and by `naiad check`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from naiad.pb.model_config_pb2 import (
    DataType,
    ModelConfig,
    ModelEnsembling,
    ModelInput,
    ModelOutput,
)
from naiad.repository.config.problem import Problem, ProblemList
from naiad.repository.config.source_map import SourceMap, entry_path
from naiad.repository.config.suggestion import nearest
from naiad.repository.config.validate_io import batch_note, dims_text


class _Tensor(msgspec.Struct, frozen=True):
    """The type and shape that one model gives a tensor of the ensemble."""

    model: ModelConfig
    data_type: int
    dims: list[int]

    @property
    def full_dims(self) -> list[int]:
        return [-1, *self.dims] if self.model.max_batch_size > 0 else self.dims


class EnsembleFit(msgspec.Struct, frozen=True):
    errors: list[Problem]
    doubts: list[Problem]
    """Mismatches that Triton accepts although only batches of one work: only one side has a batch
    dimension."""


def validate_ensemble(
    ensemble: ModelConfig,
    models: Mapping[str, ModelConfig],
    *,
    lines: SourceMap | None = None,
    unknown: Collection[str] = (),
) -> EnsembleFit:
    """`unknown` are models whose tensors are not known: their steps fit."""
    found, doubts = ProblemList(lines or SourceMap()), ProblemList(lines or SourceMap())
    steps = ensemble.ensemble_scheduling.step
    missing = sorted({step.model_name for step in steps} - set(models))
    if missing:
        _add_missing(ensemble, missing, list(models), found)
        return EnsembleFit(found.problems, [])
    fit = _Fit(ensemble, found, doubts)
    for index, step in enumerate(steps):
        if step.model_name not in unknown:
            fit.add_step(step, models[step.model_name], f"ensemble_scheduling.step[{index}]")
    if not found.problems:
        _label_responses(ensemble, models, found)
    return EnsembleFit(found.problems, doubts.problems)


def _add_missing(
    ensemble: ModelConfig, missing: list[str], known: list[str], found: ProblemList
) -> None:
    message = (
        f"ensemble {ensemble.name} contains models that are not available or ambiguous: "
        f"{', '.join(missing)}"
    )
    near = nearest(missing[0], [name for name in known if name != ensemble.name])
    fix = f"did you mean '{near}'?" if near else "add the model to the repository"
    index = next(
        at
        for at, step in enumerate(ensemble.ensemble_scheduling.step)
        if step.model_name == missing[0]
    )
    path = f"ensemble_scheduling.step[{index}].model_name"
    found.add(
        "ensemble-model",
        message,
        path,
        found=f"no model '{missing[0]}'",
        expected="a model of this repository",
        fix=fix,
    )


def is_decoupled_ensemble(ensemble: ModelConfig, models: Mapping[str, ModelConfig]) -> bool:
    """Triton overwrites the ensemble's model_transaction_policy with this."""
    return any(
        models[step.model_name].model_transaction_policy.decoupled
        for step in ensemble.ensemble_scheduling.step
    )


def find_cycle(ensembles: Mapping[str, ModelConfig]) -> list[str]:
    """The names of ensembles that call each other in a cycle; empty if there is no cycle."""
    done: set[str] = set()
    for start in ensembles:
        trail: list[str] = []
        cycle = _walk(start, ensembles, trail, done)
        if cycle:
            return cycle
    return []


def cycle_message(cycle: Sequence[str]) -> str:
    return f"circular dependency between ensembles: {cycle[0]} -> ... -> {cycle[-1]} -> {cycle[0]}"


def _walk(
    name: str, ensembles: Mapping[str, ModelConfig], trail: list[str], done: set[str]
) -> list[str]:
    if name in trail:
        return trail[trail.index(name) :]
    if name in done or name not in ensembles:
        return []
    trail.append(name)
    for step in ensembles[name].ensemble_scheduling.step:
        cycle = _walk(step.model_name, ensembles, trail, done)
        if cycle:
            return cycle
    trail.pop()
    done.add(name)
    return []


class _Fit:
    """Collects, step by step, the types and shapes that models give the ensemble's tensors."""

    def __init__(self, ensemble: ModelConfig, found: ProblemList, doubts: ProblemList) -> None:
        self._ensemble = ensemble
        self._found = found
        self._doubts = doubts
        self._tensors: dict[str, _Tensor] = {}
        tensors: list[ModelInput | ModelOutput] = [*ensemble.input, *ensemble.output]
        for tensor in tensors:
            dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            self._tensors.setdefault(tensor.name, _Tensor(ensemble, tensor.data_type, list(dims)))

    def add_step(self, step: ModelEnsembling.Step, model: ModelConfig, path: str) -> None:
        limit = self._ensemble.max_batch_size
        if model.max_batch_size != 0 and model.max_batch_size < limit:
            message = (
                f"ensemble {self._ensemble.name} allows maximum batch size {limit}, but it "
                f"contains model {step.model_name} "
                f"which only allows maximum batch size to be {model.max_batch_size}"
            )
            fix = (
                f"lower the ensemble's max_batch_size to {model.max_batch_size}, or raise the "
                "model's"
            )
            self._found.add(
                "ensemble-batch",
                message,
                "max_batch_size",
                found=str(limit),
                expected=f"at most {model.max_batch_size}",
                fix=fix,
            )
        self._check_inputs(step, model, path)
        self._check_outputs(step, model, path)

    def _check_inputs(self, step: ModelEnsembling.Step, model: ModelConfig, path: str) -> None:
        tensors = {tensor.name: tensor for tensor in model.input}
        for name, ensemble_tensor in sorted(step.input_map.items()):
            where = entry_path(f"{path}.input_map", name)
            if name in tensors:
                tensor = tensors[name]
                self._compare(
                    ensemble_tensor, _Tensor(model, tensor.data_type, list(tensor.dims)), where
                )
            else:
                message = (
                    f"in ensemble {self._ensemble.name}, ensemble tensor {ensemble_tensor} "
                    f"is mapping to non-existing input {name} "
                    f"in model {step.model_name}"
                )
                self._no_such_tensor(
                    message, where, name, list(tensors), f"inputs of {step.model_name}"
                )
        for name, tensor in tensors.items():
            if name not in step.input_map and not tensor.optional:
                message = (
                    f"in ensemble {self._ensemble.name}, input {name} in model {model.name} is "
                    "not mapped to any ensemble tensors"
                )
                fix = f'add input_map {{ key: "{name}" value: "<an ensemble tensor>" }}'
                self._found.add(
                    "ensemble-unmapped",
                    message,
                    f"{path}.input_map",
                    found=f"no entry for '{name}'",
                    expected="one",
                    fix=fix,
                )

    def _check_outputs(self, step: ModelEnsembling.Step, model: ModelConfig, path: str) -> None:
        tensors = {tensor.name: tensor for tensor in model.output}
        for name, ensemble_tensor in sorted(step.output_map.items()):
            where = entry_path(f"{path}.output_map", name)
            if name in tensors:
                tensor = tensors[name]
                self._compare(
                    ensemble_tensor, _Tensor(model, tensor.data_type, list(tensor.dims)), where
                )
            else:
                message = (
                    f"in ensemble {self._ensemble.name}, ensemble tensor {ensemble_tensor} "
                    f"is mapped from non-existing output {name} "
                    f"in model {step.model_name}"
                )
                self._no_such_tensor(
                    message, where, name, list(tensors), f"outputs of {step.model_name}"
                )

    def _no_such_tensor(
        self, message: str, path: str, name: str, known: list[str], whose: str
    ) -> None:
        near = nearest(name, known)
        fix = (
            f"did you mean '{near}'?"
            if near
            else "the key is the model's own tensor name, the value the ensemble's"
        )
        expected = f"one of the {whose}: {', '.join(known) or 'none'}"
        self._found.add(
            "ensemble-tensor", message, path, found=f"'{name}'", expected=expected, fix=fix
        )

    def _compare(self, name: str, other: _Tensor, path: str) -> None:
        first = self._tensors.setdefault(name, other)
        prefix = f"in ensemble {self._ensemble.name}, ensemble tensor {name}: inconsistent "
        if first.data_type != other.data_type:
            types = [
                DataType.Name(kind) if kind in DataType.values() else str(kind)
                for kind in (first.data_type, other.data_type)
            ]
            message = (
                f"{prefix}data type: {types[0]} is inferred from model {first.model.name} "
                f"while {types[1]} is inferred from model "
                f"{other.model.name}"
            )
            shown = f"{types[1]} in {other.model.name}"
            self._found.add(
                "ensemble-type",
                message,
                path,
                found=shown,
                expected=f"{types[0]}, as in {first.model.name}",
            )
        elif not _agree(first.full_dims, other.full_dims):
            message = (
                f"{prefix}shape: {dims_text(first.full_dims)} is inferred from model "
                f"{first.model.name} while "
                f"{dims_text(other.full_dims)} is inferred from model {other.model.name}"
            )
            shown = f"{other.model.name} has {batch_note(other.model, other.dims)}"
            expected = f"the same as {first.model.name}: {batch_note(first.model, first.dims)}"
            if not _agree(first.dims, other.dims):
                self._found.add("ensemble-shape", message, path, found=shown, expected=expected)
            else:
                fix = (
                    "set max_batch_size in both, or add the batch dimension as -1 to the dims of "
                    "the model without max_batch_size; as it is, only batches of 1 work"
                )
                self._doubts.add(
                    "ensemble-batching", message, path, found=shown, expected=expected, fix=fix
                )


def _agree(one: list[int], other: list[int]) -> bool:
    return len(one) == len(other) and all(
        a == b or -1 in (a, b) for a, b in zip(one, other, strict=True)
    )


def _label_responses(
    ensemble: ModelConfig, models: Mapping[str, ModelConfig], found: ProblemList
) -> None:
    """A decoupled step may send any number of responses, so a later step must not combine its
    tensors with those of another decoupled step."""
    labels: dict[str, int] = {tensor.name: 0 for tensor in ensemble.input}
    makers = {0: "plain models"}  # label -> the model whose responses have it
    remaining = list(enumerate(ensemble.ensemble_scheduling.step))
    next_label = 1
    while True:
        ready = next(
            (
                entry
                for entry in remaining
                if all(name in labels for name in entry[1].input_map.values())
            ),
            None,
        )
        if ready is None:
            break
        remaining.remove(ready)
        index, step = ready
        origins = {labels[name] for name in step.input_map.values()}
        if len(origins) > 1:
            message = (
                f"in ensemble {ensemble.name}, step of model '{step.model_name}' receives inputs "
                "originated from different decoupled models"
            )
            path = f"ensemble_scheduling.step[{index}]"
            shown = ", ".join(
                f"'{name}' with the responses of {makers[labels[name]]}"
                for name in sorted(step.input_map.values())
            )
            found.add(
                "ensemble-decoupled",
                message,
                path,
                found=shown,
                expected="all inputs from one decoupled step, or from none",
            )
            return
        label = origins.pop()
        if models[step.model_name].model_transaction_policy.decoupled:
            label, next_label = next_label, next_label + 1
            makers[label] = step.model_name
        labels.update(dict.fromkeys(step.output_map.values(), label))
    if len({labels[tensor.name] for tensor in ensemble.output if tensor.name in labels}) > 1:
        # Triton's message names the ensemble itself as the step.
        message = (
            f"in ensemble {ensemble.name}, step of model '{ensemble.name}' receives inputs "
            "originated from different decoupled models"
        )
        made = (tensor.name for tensor in ensemble.output if tensor.name in labels)
        shown = ", ".join(f"'{name}' with the responses of {makers[labels[name]]}" for name in made)
        found.add(
            "ensemble-decoupled",
            message,
            "output",
            found=shown,
            expected="all outputs from one decoupled step, or from none",
        )
