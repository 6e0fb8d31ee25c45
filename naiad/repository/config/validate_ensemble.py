"""Rules for an ensemble's own graph of tensors; part of validate. ensemble_fit checks whether the
ensemble fits its models.

A step reads and writes tensors of the ensemble. Every output must be computable from the inputs,
and every tensor must be used.
"""

from __future__ import annotations

import msgspec

from naiad.pb.model_config_pb2 import ModelConfig, ModelEnsembling
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.source_map import entry_path
from naiad.repository.config.suggestion import nearest

ENSEMBLE_PLATFORM = "ensemble"


class Node(msgspec.Struct):
    """A tensor of the ensemble, with the tensors it is computed from and those computed from it."""

    name: str
    needs: list[str] = []
    feeds: list[str] = []
    is_written: bool = False
    is_ready: bool = False


def check_ensemble_scheduling(config: ModelConfig, found: ProblemList) -> None:
    name = config.name
    if not config.HasField("ensemble_scheduling"):
        if config.platform == ENSEMBLE_PLATFORM:
            message = (
                f"ensemble scheduling must be set for ensemble {name} whose platform is "
                f"{ENSEMBLE_PLATFORM}"
            )
            found.add(
                "ensemble-missing",
                message,
                "platform",
                found="no ensemble_scheduling",
                expected="ensemble_scheduling { step [ ... ] }",
            )
        return
    if config.platform != ENSEMBLE_PLATFORM:
        message = (
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not "
            f"{ENSEMBLE_PLATFORM}"
        )
        fix = 'write platform: "ensemble" and no backend'
        shown = f"platform '{config.platform}', backend '{config.backend}'"
        found.add(
            "ensemble-platform",
            message,
            "ensemble_scheduling",
            found=shown,
            expected=f"platform '{ENSEMBLE_PLATFORM}'",
            fix=fix,
        )
    _check_forbidden(config, found)
    if not config.ensemble_scheduling.step:
        message = f"must specify 'step' for ensemble '{name}'"
        found.add(
            "ensemble-step",
            message,
            "ensemble_scheduling",
            found="no step",
            expected="one step per model",
        )
        return
    graph = _build_graph(config, found)
    if graph is not None:
        _check_flow(config, graph, found)


def _check_forbidden(config: ModelConfig, found: ProblemList) -> None:
    starts = {
        "instance_group": "instance group should not",
        "optimization": "optimization should not",
        "model_warmup": "model_warmup can not",
    }
    is_given = {
        "instance_group": bool(config.instance_group),
        "optimization": config.HasField("optimization"),
        "model_warmup": bool(config.model_warmup),
    }
    for field, start in starts.items():
        if is_given[field]:
            message = f"{start} be specified for ensemble '{config.name}'"
            fix = f"move {field} to the configurations of the models in its steps"
            found.add(
                "ensemble-field",
                message,
                field,
                found=field,
                expected="none: an ensemble runs no model of its own",
                fix=fix,
            )


def _build_graph(config: ModelConfig, found: ProblemList) -> dict[str, Node] | None:
    """None if a step is incomplete."""
    graph: dict[str, Node] = {}
    is_whole = True
    for index, step in enumerate(config.ensemble_scheduling.step):
        is_whole = _check_step(config, step, index, found) and is_whole
        path = f"ensemble_scheduling.step[{index}]"
        for output, tensor in sorted(step.output_map.items()):
            node = graph.setdefault(tensor, Node(tensor))
            if node.is_written:
                message = (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for "
                    f"ensemble '{config.name}' step {index}"
                )
                fix = "give one of the two another ensemble tensor name"
                where = entry_path(f"{path}.output_map", output)
                found.add(
                    "ensemble-written-twice",
                    message,
                    where,
                    found=f"'{tensor}' is written twice",
                    expected="once",
                    fix=fix,
                )
                is_whole = False
            node.is_written = True
        for tensor in sorted(set(step.input_map.values())):
            source = graph.setdefault(tensor, Node(tensor))
            for target in step.output_map.values():
                graph[target].needs.append(tensor)
                source.feeds.append(target)
    return graph if is_whole else None


def _check_step(
    config: ModelConfig, step: ModelEnsembling.Step, index: int, found: ProblemList
) -> bool:
    path = f"ensemble_scheduling.step[{index}]"
    is_given = {
        "model_name": bool(step.model_name),
        "input_map": bool(step.input_map),
        "output_map": bool(step.output_map),
    }
    for field, given in is_given.items():
        if not given:
            message = f"must specify '{field}' in step {index} of ensemble '{config.name}'"
            example = (
                'model_name: "..."'
                if field == "model_name"
                else f'{field} {{ key: "<model\'s tensor>" value: "<ensemble\'s tensor>" }}'
            )
            found.add("ensemble-step", message, path, found=f"no {field}", expected=example)
    return all(is_given.values())


def _check_flow(config: ModelConfig, graph: dict[str, Node], found: ProblemList) -> None:
    for index, tensor in enumerate(config.input):
        if tensor.name in graph:
            _mark_ready(graph, tensor.name)
        else:
            # The quote is missing in Triton's message too, and scripts match on it.
            message = f"ensemble input '{tensor.name}' for ensemble {config.name}' is not used"
            _unused(
                "ensemble-input",
                message,
                f"input[{index}]",
                tensor.name,
                graph,
                "value in an input_map",
                found,
            )
    outputs: set[str] = set()
    for index, output in enumerate(config.output):
        node = graph.get(output.name)
        if node is None:
            message = f"ensemble output '{output.name}' for ensemble {config.name}' is not used"
            _unused(
                "ensemble-output",
                message,
                f"output[{index}]",
                output.name,
                graph,
                "value in an output_map",
                found,
            )
        elif not node.is_ready:
            _not_written(config, graph, node, f"output[{index}]", found)
        outputs.add(output.name)
    if found.problems:
        return
    for name, node in graph.items():
        if name not in outputs and (not node.is_ready or not node.feeds):
            message = f"ensemble tensor '{name}' is unused in ensemble '{config.name}'"
            fix = f"remove its output_map entry, or add '{name}' to the ensemble's outputs"
            found.add(
                "ensemble-unused",
                message,
                _written_at(config, name),
                found=f"no step reads '{name}'",
                expected="a step that reads it",
                fix=fix,
            )


def _mark_ready(graph: dict[str, Node], start: str) -> None:
    """Marks `start`, and every tensor that can be computed once it is there."""
    graph[start].is_ready = True
    unvisited = [start]
    while unvisited:
        for target in graph[unvisited.pop()].feeds:
            node = graph[target]
            if not node.is_ready and all(graph[need].is_ready for need in node.needs):
                node.is_ready = True
                unvisited.append(target)


def _not_written(
    config: ModelConfig, graph: dict[str, Node], node: Node, path: str, found: ProblemList
) -> None:
    culprit, seen = node, {node.name}
    while missing := next(
        (graph[need] for need in culprit.needs if not graph[need].is_ready and need not in seen),
        None,
    ):
        culprit = missing
        seen.add(missing.name)
    message = f"output '{node.name}' for ensemble '{config.name}' is not written"
    fix = "let a step write it: add it to an output_map"
    if culprit is not node:
        message += f": at least one of its depending tensors, '{culprit.name}', is not connected"
        known = sorted(
            {tensor.name for tensor in config.input}
            | {other.name for other in graph.values() if other.is_written}
        )
        near = nearest(culprit.name, [name for name in known if name != culprit.name])
        fix = f"add '{culprit.name}' to the ensemble's inputs, or let a step write it" + (
            f"; did you mean '{near}'?" if near else ""
        )
        if culprit.is_written:
            fix = f"the steps around '{culprit.name}' wait for each other: break the cycle"
    shown = (
        f"no step can write '{node.name}'"
        if culprit is node
        else f"no step writes '{culprit.name}'"
    )
    found.add(
        "ensemble-not-written",
        message,
        path,
        found=shown,
        expected="every tensor to be an input or to be written by a step",
        fix=fix,
    )


def _unused(
    code: str,
    message: str,
    path: str,
    name: str,
    graph: dict[str, Node],
    place: str,
    found: ProblemList,
) -> None:
    near = nearest(name, graph)
    fix = f"did you mean '{near}'?" if near else ""
    found.add(
        code,
        message,
        path,
        found=f"'{name}' is in no step",
        expected=f"'{name}' as a {place}",
        fix=fix,
    )


def _written_at(config: ModelConfig, tensor: str) -> str:
    for index, step in enumerate(config.ensemble_scheduling.step):
        for kind in ("output_map", "input_map"):
            for key, value in getattr(step, kind).items():
                if value == tensor:
                    return entry_path(f"ensemble_scheduling.step[{index}].{kind}", key)
    return "ensemble_scheduling"
