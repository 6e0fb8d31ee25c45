"""The entry points `naiad` and `tritonserver`.

In:  argv. `tritonserver` accepts Triton's command line unchanged.
Out: the exit code. It is 0, or 1 after one error message on stderr, like tritonserver's.
Rule: a module that is slow to import is imported by the command that needs it, not here.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from naiad.cli.serve import ServeCommand, expand_abbreviations
from naiad.errors import NaiadError

if TYPE_CHECKING:
    from naiad.settings import Settings
from naiad.machine.telemetry import switch_off_telemetry
from naiad.settings.option import OptionError
from naiad.settings.resolve import TRITONSERVER_DEFAULTS, suggestion
from naiad.tools.command_context import CONTEXT


def main() -> None:
    sys.exit(run(naiad, "naiad", sys.argv[1:]))


def tritonserver() -> None:
    command = ServeCommand(
        "tritonserver",
        TRITONSERVER_DEFAULTS,
        "Serve model repositories, with the flags and defaults of Triton.",
    )
    sys.exit(run(command, "tritonserver", expand_abbreviations(sys.argv[1:])))


def perf_analyzer() -> None:
    """NVIDIA's command line for `naiad perf`."""
    from naiad.perf.command import command

    spellings = command.spellings()
    sys.exit(run(command, "perf_analyzer", expand_abbreviations(sys.argv[1:], spellings)))


def model_analyzer() -> None:
    """NVIDIA's command line for `naiad analyze`."""
    from naiad.analyze.command import command
    from naiad.analyze.model_analyzer import translate

    try:
        translated = translate(sys.argv[1:])
    except OptionError as failure:
        sys.exit(_fail(str(failure), _hint("model-analyzer")))
    for note in translated.notes:
        click.echo(f"model-analyzer: {note}", err=True)
    sys.exit(run(command, "model-analyzer", translated.arguments))


def run(command: click.Command, name: str, arguments: Sequence[str]) -> int:
    switch_off_telemetry(os.environ)
    try:
        return int(command.main(list(arguments), name, standalone_mode=False) or 0)
    except OptionError as failure:
        return _fail(
            str(failure),
            _hint(f"{name} {arguments[0]}" if isinstance(command, click.Group) else name),
        )
    except click.NoSuchOption as failure:
        is_serve = failure.ctx is None or isinstance(failure.ctx.command, ServeCommand)
        nearest = suggestion(failure.option_name.lstrip("-")) if is_serve else _nearest(failure)
        return _fail(
            f"error: unrecognized option '{failure.option_name}'{nearest}", _hint(_path(failure))
        )
    except click.ClickException as failure:
        return _fail(f"error: {failure.format_message()}", _hint(_path(failure)))
    except NaiadError as failure:
        is_server = isinstance(command, ServeCommand) or (
            name == "naiad" and "serve" in arguments[:1]
        )
        reason = f"creating server: {failure.code} - " if is_server else ""
        return _fail(f"error: {reason}{failure.message}")
    except OSError as failure:
        if failure.errno not in _NO_ROOM:
            raise
        what = f"'{failure.filename}'" if failure.filename else "a file"
        return _fail(f"error: {what} cannot be written: {failure.strerror}")
    except (KeyboardInterrupt, click.Abort):
        return 130


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@click.group("naiad", context_settings=CONTEXT, invoke_without_command=True)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _, value: _print_version(context) if value else None,
    help="Show the version, and what a report of a bug should contain.",
)
@click.pass_context
def naiad(context: click.Context) -> None:
    """Naiad serves Triton model repositories."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def _print_version(context: click.Context) -> None:
    from naiad.tools.version_report import version_report

    click.echo(version_report())
    context.exit()


naiad.add_command(
    ServeCommand("serve", {}, "Serve the models of one or more repositories over HTTP and gRPC.")
)


@naiad.command("check", context_settings=CONTEXT)
@click.argument(
    "directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--write",
    is_flag=True,
    help="First write a config.pbtxt for each model that does not have one.",
)
@click.option(
    "--example",
    "examples",
    metavar="NAME=SHAPE[:TYPE]",
    multiple=True,
    help="With --write: an example input, including the batch dimension, for models whose files do "
    "not declare shapes (TorchScript), e.g. x=1,3,224,224. May be repeated.",
)
@click.option(
    "--load",
    is_flag=True,
    help="Also load each model once, in a worker as the server does, and end it again.",
)
@click.option(
    "--backend-directory",
    metavar="DIR",
    default="/opt/tritonserver/backends",
    help="The folder of the server's own backends, as for naiad serve.",
)
def check(
    directories: tuple[Path, ...],
    write: bool,
    examples: tuple[str, ...],
    load: bool,
    backend_directory: str,
) -> int:
    """Check model repositories without serving them.

    Reports each problem with its file and line, what was found, what was expected and how to fix
    it. The exit code is 1 if a model would fail to load on any machine. What only this machine
    lacks (a GPU, a package, an interpreter) is a warning, and fails with --load.
    """
    from naiad import wiring
    from naiad.repository.check.check import Severity, check_repository, render_findings
    from naiad.settings import Settings
    from naiad.worker.import_backend import BACKENDS

    has_failed = False
    if write:
        from naiad.tools.write_config import parse_example, write_configs

        for written in write_configs(directories, [parse_example(text) for text in examples]):
            click.echo(f"{written.path}: {written.error or 'written'}", err=bool(written.error))
            has_failed = has_failed or bool(written.error)
    elif examples:
        raise click.UsageError("--example requires --write")
    settings = Settings(
        model_repository=tuple(map(str, directories)), backend_directory=backend_directory
    )
    options = wiring.config_options(settings)
    findings = check_repository(
        directories,
        options=options,
        backends=frozenset(BACKENDS) | options.other_backends,
        should_open=True,
    )
    click.echo(render_findings(findings), nl=False)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if load and not any(not finding.model for finding in errors):
        has_failed |= not _try_loads(settings, {finding.model for finding in errors})
    return 1 if has_failed or errors else 0


def _try_loads(settings: Settings, failed: set[str]) -> bool:
    """Whether every model that was tried could be loaded."""
    from naiad import log
    from naiad.tools.check_load import Trial, try_loads

    log.configure(log.LogSettings(log_info=False))
    trials: list[Trial] = []

    def report(trial: Trial) -> None:
        log.flush()
        trials.append(trial)
        click.echo(trial.line())
        if trial.details:
            click.echo("\n".join(f"    {line}".rstrip() for line in trial.details.splitlines()))

    click.echo()
    try_loads(settings, failed, report)
    num_loaded = sum(not (trial.error or trial.skipped) for trial in trials)
    click.echo(f"\n{num_loaded} of {len(trials)} models loaded")
    return not any(trial.error for trial in trials)


class LazyCommand(click.Command):
    """A command whose module is imported when the command is called.

    The module's attribute `command` is the actual command.
    """

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, CONTEXT, short_help=short_help)
        self._module = module

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        module, _, attribute = self._module.partition(":")
        try:
            command: click.Command = getattr(
                importlib.import_module(module), attribute or "command"
            )
        except ModuleNotFoundError as failure:
            if failure.name is None or failure.name.startswith("naiad"):
                raise
            raise click.ClickException(
                f"'naiad {info_name}' needs {failure.name}, which is not installed: "
                f"pip install {failure.name}"
            ) from failure
        return command.make_context(info_name, args, parent, **extra)


naiad.add_command(
    LazyCommand("init", "naiad.tools.init_command", "Write a model repository to start from.")
)
naiad.add_command(
    LazyCommand(
        "pull",
        "naiad.tools.pull",
        "Download a demo language model, or a checkpoint from the Hugging Face hub.",
    )
)
naiad.add_command(
    LazyCommand("chat", "naiad.chat.command:chat", "Talk to a language model in the terminal.")
)
naiad.add_command(
    LazyCommand("generate", "naiad.chat.command:generate", "Let a language model continue a text.")
)
naiad.add_command(
    LazyCommand(
        "console", "naiad.tools.console_command", "Print the link to the console of a server."
    )
)
naiad.add_command(LazyCommand("key", "naiad.tools.key_command", "Manage API keys."))
naiad.add_command(
    LazyCommand("cluster", "naiad.cluster.command", "Serve models on many machines, with Ray.")
)
naiad.add_command(
    LazyCommand(
        "router", "naiad.router.command", "Route requests to many servers, from one address."
    )
)
naiad.add_command(
    LazyCommand(
        "deploy",
        "naiad.tools.deploy.command",
        "Print manifests that fit the models at hand.",
    )
)
naiad.add_command(
    LazyCommand(
        "perf", "naiad.perf.command", "Measure a model under load. Accepts perf_analyzer's flags."
    )
)
naiad.add_command(
    LazyCommand(
        "quantize",
        "naiad.tools.quantize.command",
        "Quantize a checkpoint: int4 (AWQ, GPTQ), int8 or fp8.",
    )
)
naiad.add_command(
    LazyCommand(
        "analyze",
        "naiad.analyze.command",
        "Find a model's best configuration, like model-analyzer.",
    )
)
naiad.add_command(
    LazyCommand(
        "doctor",
        "naiad.cli.doctor",
        "Check this machine, and say what is wrong and how to mend it.",
    )
)
naiad.add_command(
    LazyCommand(
        "completion", "naiad.cli.completion", "Print a script that completes commands in a shell."
    )
)
naiad.add_command(LazyCommand("man", "naiad.cli.man_page", "Print a manual page."))


def _nearest(failure: click.NoSuchOption) -> str:
    return f", did you mean '{failure.possibilities[0]}'?" if failure.possibilities else ""


def _path(failure: click.ClickException) -> str:
    context = getattr(failure, "ctx", None)
    return context.command_path if context is not None else ""


def _hint(command_path: str) -> str:
    return f"Try '{command_path} --help'." if command_path else ""


def _fail(*lines: str) -> int:
    click.echo("\n".join(line for line in lines if line), err=True)
    return 1
