"""Runs `naiad analyze profile`: starts the server, studies each workload and writes the reports.

Rule: every measurement is stored in the checkpoint first. An interrupted run loses nothing, and a
      second run measures nothing twice.
"""

from __future__ import annotations

import asyncio
import datetime
import signal
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from naiad import __version__
from naiad.analyze.brute import Search, brute_search
from naiad.analyze.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointJob,
    Goal,
    fingerprint,
    job_key,
)
from naiad.analyze.config_file import read_config_file
from naiad.analyze.job import Bench, Workload
from naiad.analyze.metric import Limit, Objectives
from naiad.analyze.optuna_search import num_trials, optuna_search
from naiad.analyze.precision_search import (
    measure_precisions,
    searched_precisions,
    without_unserved,
)
from naiad.analyze.progress import SearchProgress
from naiad.analyze.quick import quick_search
from naiad.analyze.ranking import rank
from naiad.analyze.report import write_report
from naiad.analyze.repository import check_models, read_configs
from naiad.analyze.server import AnalyzedServer, LocalServer, ServerError, make_server
from naiad.analyze.settings import AnalyzedModel, ProfileOptions, ReportOptions
from naiad.analyze.space import Space, build_space
from naiad.analyze.study import Study, UnusableModelError, sweep_concurrencies
from naiad.analyze.variant import override_json
from naiad.analyze.winner import write_winners
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.perf.channels.control import ControlError
from naiad.perf.report.progress import LiveLine, wants_live
from naiad.perf.report.saved_run import command_text
from naiad.settings.option import OptionError
from naiad.tools.machine import machine_text
from naiad.tools.report_path import make_folder

UNUSABLE = 99
INTERRUPTED = 130


def run_profile(values: dict[str, Any]) -> int:
    """Runs the command. `values` are the options of the command line. Raises OptionError."""
    options, specs = complete_options(values)
    make_folder("--export-path", options.export_path)
    return uvloop.run(_profile(options, specs))


def complete_options(values: dict[str, Any]) -> tuple[ProfileOptions, list[AnalyzedModel]]:
    """Combines the command line with the config file, which the command line overrides.

    Each model gets its own goal or else the common goal.
    """
    file_values: dict[str, Any] = {}
    specs = [AnalyzedModel(name=name) for name in values.get("profile_models", [])]
    if "config_file" in values:
        file = read_config_file(Path(values["config_file"]))
        for note in file.notes:
            click.echo(note, err=True)
        file_values = file.values
        file_specs = {spec.name: spec for spec in file.models}
        specs = [file_specs.get(spec.name, spec) for spec in specs] or file.models
    options = ProfileOptions(**(file_values | values))
    if options.triton_launch_mode not in ("local", "remote"):
        raise OptionError(
            f"--triton-launch-mode is '{options.triton_launch_mode}', expected local (start a"
            " server) or remote (use a running server)"
        )
    if not specs:
        raise OptionError("--profile-models is required: the names of the models to measure")
    if options.triton_launch_mode == "local":
        if not options.model_repository:
            raise OptionError("--model-repository is required: the directory of the models")
        check_models(Path(options.model_repository), [spec.name for spec in specs])
    return options, [_with_goal(options, spec) for spec in specs]


def _with_goal(options: ProfileOptions, spec: AnalyzedModel) -> AnalyzedModel:
    default: Objectives = (
        {"output_token_throughput": 1.0}
        if options.model_type == "llm"
        else {"perf_throughput": 1.0}
    )
    constraints = dict(spec.constraints or options.constraints)
    if options.latency_budget:
        constraints["perf_latency_p99"] = Limit(maximum=options.latency_budget)
    if options.min_throughput:
        constraints["perf_throughput"] = Limit(minimum=options.min_throughput)
    return msgspec.structs.replace(
        spec, objectives=spec.objectives or options.objectives or default, constraints=constraints
    )


async def _profile(options: ProfileOptions, specs: list[AnalyzedModel]) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    checkpoint = Checkpoint(Path(options.checkpoint_directory))
    server = make_server(options)
    groups = (
        [specs]
        if options.run_config_profile_models_concurrently_enable
        else [[spec] for spec in specs]
    )
    jobs: list[tuple[CheckpointJob, Workload]] = []
    code = 0
    try:
        await server.start()
        for group in groups:
            try:
                jobs.append(await _search_group(options, group, server, checkpoint))
            except (ControlError, UnusableModelError) as error:
                click.echo(f"error: {' + '.join(spec.name for spec in group)}: {error}", err=True)
                code = UNUSABLE
    except (ServerError, CheckpointError) as error:
        click.echo(f"error: {error}", err=True)
        code = UNUSABLE
    except asyncio.CancelledError:
        click.echo(
            "Interrupted. All measurements are stored; run the same command again to resume.",
            err=True,
        )
        code = INTERRUPTED
    finally:
        await server.stop()
        checkpoint.close()
    if isinstance(server, LocalServer) and code == 0:
        server.delete_temporary_log()
    return _finish(options, checkpoint, jobs) or code


def _finish(
    options: ProfileOptions, checkpoint: Checkpoint, jobs: list[tuple[CheckpointJob, Workload]]
) -> int:
    """Writes the best configurations and the reports, even after an interruption."""
    history = checkpoint.history
    if not history.jobs:
        return 0
    for job, workload in jobs:
        measurements = list(history.measurements[" + ".join(job.models)].values())
        ranked = rank(measurements, job.goal)
        if ranked:
            try:
                write_winners(options, workload, ranked)
            except OSError as error:
                click.echo(f"error: failed to write the best configurations: {error}", err=True)
    if not options.skip_summary_reports:
        formats = ReportOptions(
            checkpoint_directory=options.checkpoint_directory,
            export_path=options.export_path,
            num_configs_per_model=options.num_configs_per_model,
        )
        return write_report(history, formats, has_details=not options.skip_detailed_reports)
    return 0


async def _search_group(
    options: ProfileOptions,
    specs: list[AnalyzedModel],
    server: AnalyzedServer,
    checkpoint: Checkpoint,
) -> tuple[CheckpointJob, Workload]:
    workload = await _workload(options, specs, server)
    job = _job(options, workload)
    bench = Bench(options, workload, server)
    job = await _with_precisions(options, workload, job, bench, checkpoint)
    known = checkpoint.begin(job)
    for measurement in known.values():
        bench.recall(measurement)
    progress = SearchProgress(
        LiveLine(wants_live(options.progress)),
        " + ".join(workload.models),
        _num_planned(options, workload.space),
        len(known),
    )
    study = Study(
        options,
        workload.space,
        bench,
        job,
        checkpoint,
        progress,
        has_fixed_load=any(spec.request_rate for spec in workload.specs),
    )
    try:
        await study.run(_make_search(options, workload.space))
    except UnusableModelError:
        await bench.unload()
        raise
    finally:
        progress.end()
    await bench.unload()
    return job, workload


async def _workload(
    options: ProfileOptions, specs: list[AnalyzedModel], server: AnalyzedServer
) -> Workload:
    control = server.control()
    configs: dict[str, ModelConfig] = {}
    try:
        for spec in specs:
            configs |= await read_configs(control, spec.name, options.bls_composing_models)
    finally:
        await control.close()
    return Workload(specs, configs, build_space(options, specs, configs))


async def _with_precisions(
    options: ProfileOptions,
    workload: Workload,
    job: CheckpointJob,
    bench: Bench,
    checkpoint: Checkpoint,
) -> CheckpointJob:
    """Measures the precisions that the search may choose, and leaves out those that the device
    cannot serve. An earlier run's figures are used again."""
    earlier = checkpoint.history.jobs.get(job_key(job.models))
    if earlier is not None and earlier.fingerprint == job.fingerprint:
        workload.precisions = earlier.precisions
    known = {(one.model, one.precision) for one in workload.precisions}
    for model, config in workload.configs.items():
        precisions = searched_precisions(workload.space, model)
        if not precisions or all((model, one) in known for one in precisions):
            continue
        if options.triton_launch_mode != "local":
            click.echo(
                f"{model}: divergence is not measured, since the server is remote and its"
                " checkpoint is not on this disk",
                err=True,
            )
            continue
        await bench.unload()
        click.echo(f"{model}: measuring {', '.join(one.text for one in precisions)}", err=True)
        found = await measure_precisions(
            config, Path(options.model_repository) / model, precisions, options.divergence_text
        )
        for outcome in found:
            if outcome.reason:
                left_out = f"{model}: {outcome.precision.text} is left out: {outcome.reason}"
                click.echo(left_out, err=True)
        workload.precisions = [
            *(one for one in workload.precisions if one.model != model), *found
        ]  # fmt: skip
    workload.space = msgspec.structs.replace(
        workload.space, dimensions=without_unserved(workload.space.dimensions, workload.precisions)
    )
    return msgspec.structs.replace(
        job, precisions=workload.precisions, space_size=workload.space.size
    )


def _job(options: ProfileOptions, workload: Workload) -> CheckpointJob:
    goal = Goal(
        {spec.name: spec.objectives for spec in workload.specs},
        {spec.name: spec.constraints for spec in workload.specs},
        {spec.name: spec.weighting for spec in workload.specs},
    )
    measured_with = [
        options.measurement_interval,
        options.perf_analyzer_flags,
        options.client_protocol,
    ]
    measured_with += [spec.perf_analyzer_flags for spec in workload.specs]
    return CheckpointJob(
        workload.models,
        fingerprint(
            [*measured_with, *(override_json(config) for config in workload.configs.values())]
        ),
        "none" if options.run_config_search_disable else options.run_config_search_mode,
        goal,
        command_text(),
        machine_text(),
        datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        __version__,
        workload.space.size,
        str(options.model_repository),
    )


def _make_search(options: ProfileOptions, space: Space) -> Search:
    if options.run_config_search_disable or options.run_config_search_mode == "brute":
        return brute_search(space, is_early_exit=options.early_exit_enable)
    if options.run_config_search_mode == "optuna":
        return optuna_search(space, options)
    return quick_search(space, has_sweep=not options.concurrency_sweep_disable)


def _num_planned(options: ProfileOptions, space: Space) -> int:
    """Returns the number of measurements, from which the remaining time is estimated.

    The number is exact for the search by brute force and a guess for the rest.
    """
    num_best = min(options.num_configs_per_model, space.num_points) + 1
    swept = 0 if options.concurrency_sweep_disable else len(sweep_concurrencies(space))
    num_after = num_best * (swept + 2 * options.comparison_rounds)
    if options.run_config_search_disable or options.run_config_search_mode == "brute":
        return space.size + 2 + num_best * 2 * options.comparison_rounds
    if options.run_config_search_mode == "optuna":
        return num_trials(space, options) + 2 + num_after
    return min(space.size, 6 * len(space.dimensions) + 6) + 2 + num_after
