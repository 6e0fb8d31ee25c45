"""Writes the best configurations as models that can be served, and the winner to the model's
config.pbtxt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from naiad.analyze.comparison import NO_BETTER
from naiad.analyze.job import Workload
from naiad.analyze.measurement import load_text
from naiad.analyze.ranking import Ranked
from naiad.analyze.repository import write_back, write_variant, written_config
from naiad.analyze.settings import ProfileOptions
from naiad.analyze.variant import changed_config
from naiad.settings.option import OptionError


def write_winners(options: ProfileOptions, workload: Workload, ranked: Sequence[Ranked]) -> None:
    """Writes the best configurations. Does nothing for a remote server, whose models are not on
    this disk. Raises OptionError."""
    if options.triton_launch_mode != "local":
        return
    folder = Path(
        options.output_model_repository_path
        or Path(options.export_path) / "output_model_repository"
    )
    if (
        folder.exists()
        and any(folder.iterdir())
        and options.output_model_repository_path
        and not options.override_output_model_repository
    ):
        raise OptionError(
            f"--output-model-repository-path {folder} is not empty. Choose another path, or set"
            " --override-output-model-repository."
        )
    best = [entry for entry in ranked if not entry.best.is_default][: options.num_configs_per_model]
    for entry in best:
        _write_variants(options, workload, entry, folder)
    if options.write_best_config and ranked:
        reason = _reason_to_keep(ranked)
        if reason:
            click.echo(f"config.pbtxt was not changed: {reason}.")
        else:
            _write_back(options, workload, ranked[0])


def _reason_to_keep(ranked: Sequence[Ranked]) -> str:
    """Returns why the model keeps its configuration; empty if the winner is better."""
    if ranked[0].is_better:
        return ""
    candidate = next((entry for entry in ranked if not entry.best.is_default), None)
    if candidate is None:
        return "only the default configuration was measured"
    if candidate.gain is None:
        return (
            f"the gain of {candidate.name} was not measured at equal load. Run the same command"
            " again to resume"
        )
    return (
        f"{candidate.name} is {NO_BETTER}, with {candidate.gain.factor} of the default at"
        f" {load_text(candidate.gain.load)}"
    )


def _comment(entry: Ranked) -> str:
    rate = entry.shown.figure("perf_throughput") or 0.0
    latency = entry.shown.figure("perf_latency_p99") or 0.0
    text = (
        f"{entry.name}, found by naiad analyze:\n{rate:,.1f} infer/sec, p99 {latency:,.2f} ms "
        f"at concurrency {entry.shown.concurrency}, batch size {entry.shown.batch_size}"
    )
    return f"{text}\n{entry.gain.factor} of the default at this load" if entry.gain else text


def _write_variants(
    options: ProfileOptions, workload: Workload, entry: Ranked, folder: Path
) -> None:
    names = {outcome.model: outcome.config_name for outcome in entry.best.outcomes}
    for outcome in entry.best.outcomes:
        source = Path(options.model_repository) / outcome.model
        config = changed_config(
            written_config(source, workload.configs[outcome.model]), outcome.values
        )
        for step in config.ensemble_scheduling.step:
            step.model_name = names.get(step.model_name, step.model_name)
        write_variant(folder, source, outcome.config_name, config, _comment(entry))


def _write_back(options: ProfileOptions, workload: Workload, winner: Ranked) -> None:
    for outcome in winner.best.outcomes:
        if outcome.values:
            directory = Path(options.model_repository) / outcome.model
            config = changed_config(
                written_config(directory, workload.configs[outcome.model]), outcome.values
            )
            kept = write_back(directory, config, _comment(winner))
            click.echo(
                f"{directory / 'config.pbtxt'} is now {outcome.config_name}; the old file is"
                f" {kept.name}"
            )
