"""`naiad deploy kubernetes`: prints manifests that fit the models at hand.

In:  repositories or checkpoints on this machine. Out: YAML on stdout, whose first lines say where
     each number comes from.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import click

from naiad import __version__
from naiad.errors import invalid_arg
from naiad.tools.command_context import CONTEXT
from naiad.tools.deploy.kubernetes import Plan, build_manifests, quantity
from naiad.tools.deploy.requirement import (
    SERVER_BYTES,
    Requirement,
    folder_bytes,
    read_requirements,
    shown,
)
from naiad.tools.deploy.yaml_text import yaml_text

STARTUP_FACTOR = 3.0
"""A pod's machine may be slower than this one, and its disk cold."""
POD_START_S = 30.0
MAX_CPUS = 16
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MEMORY = re.compile(r"([0-9]+)(Mi|Gi)")


@click.group("deploy", context_settings=CONTEXT)
def command() -> None:
    """Write what other systems need to run Naiad."""


@command.command("kubernetes", context_settings=CONTEXT)
@click.option(
    "--model-repository",
    "repositories",
    metavar="DIR",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Repository on this machine. Pods find it at /models, on the claim of --models-claim, or "
    "at --serve-from. May be repeated.",
)
@click.option(
    "--model",
    "checkpoints",
    metavar="[NAME=]CHECKPOINT",
    multiple=True,
    help="Checkpoint of a language model: a file or a folder on this machine. May be repeated.",
)
@click.option(
    "--serve-from",
    metavar="URL",
    help="Where pods find the repository (s3://, gs://, as://, hf://) instead of a claim.",
)
@click.option("--name", default="naiad", show_default=True, help="Name of the deployment.")
@click.option("--namespace", default="", help="Namespace of all objects.")
@click.option("--image", help="Image, by default naiad:VERSION-cpu or naiad:VERSION-cuda13.")
@click.option("--replicas", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--gpus", type=click.IntRange(min=0), help="GPUs of each pod, instead of the plan's.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True)
@click.option("--memory", metavar="SIZE", help="Memory of each pod, instead of the plan's: 16Gi.")
@click.option(
    "--measure",
    is_flag=True,
    help="Load each model once here, as `naiad check --load` does, for the time that pods have to "
    "start. Without it the time is estimated from the sizes of files.",
)
@click.option("--models-claim", default="models", show_default=True, help="Claim with the models.")
@click.option("--api-key-secret", default="", help="Secret with a key file, keys.json.")
@click.option("--tls-secret", default="", help="Secret of type kubernetes.io/tls.")
@click.option(
    "--scaler", type=click.Choice(["none", "hpa", "keda"]), default="none", show_default=True
)
@click.option("--max-replicas", type=click.IntRange(min=1), default=4, show_default=True)
def kubernetes(
    repositories: tuple[Path, ...],
    checkpoints: tuple[str, ...],
    serve_from: str | None,
    name: str,
    namespace: str,
    image: str | None,
    replicas: int,
    gpus: int | None,
    gpu_resource: str,
    memory: str | None,
    measure: bool,
    models_claim: str,
    api_key_secret: str,
    tls_secret: str,
    scaler: str,
    max_replicas: int,
) -> None:
    """Print manifests for Kubernetes that fit the models at hand: GPUs, memory and time to start.

    Apply them with `naiad deploy kubernetes ... | kubectl apply -f -`.
    """
    if not repositories and not checkpoints:
        raise click.UsageError("give --model-repository DIR or --model CHECKPOINT")
    for flag, text in (("--name", name), ("--namespace", namespace)):
        if text and _NAME.fullmatch(text) is None:
            raise invalid_arg(f"{flag}: '{text}' must consist of a-z, 0-9 and -, at most 63")
    if max_replicas < replicas:
        raise invalid_arg(f"--max-replicas is {max_replicas}, expected at least {replicas}")
    with ExitStack() as stack:
        folders = list(repositories)
        if checkpoints:
            from naiad.tools.model_argument import checkpoint_repository

            folders.append(stack.enter_context(checkpoint_repository(checkpoints)))
        models = read_requirements(folders)
        if not models:
            raise invalid_arg(f"there is no model in {', '.join(map(str, repositories))}")
        seconds = _measured_s(folders) if measure else sum(model.load_s for model in models)
        num_bytes = sum(folder_bytes(folder) for folder in folders)
    num_gpus = _num_gpus(models) if gpus is None else gpus
    needed = SERVER_BYTES + sum(model.memory_bytes for model in models)
    startup_s = POD_START_S + STARTUP_FACTOR * seconds
    arguments, is_claimed = _served(repositories, checkpoints, serve_from)
    plan = Plan(
        name=name,
        namespace=namespace,
        image=image or f"naiad:{__version__}-{'cuda13' if num_gpus else 'cpu'}",
        arguments=arguments,
        num_gpus=num_gpus,
        gpu_resource=gpu_resource,
        num_cpus=min(MAX_CPUS, sum(model.num_instances for model in models)),
        memory_bytes=needed if memory is None else _read_memory(memory),
        startup_s=startup_s,
        cache_bytes=(10 << 30) + (num_bytes if serve_from else 0),
        replicas=replicas,
        models_claim=models_claim if is_claimed else "",
        key_secret=api_key_secret,
        tls_secret=tls_secret,
        scaler=scaler,
        max_replicas=max_replicas,
        is_language=any(model.is_language for model in models),
    )
    how = "measured" if measure else "estimated from files"
    notes = [
        "Made by `naiad deploy kubernetes`.",
        *(f"{model.model}: {shown(model.memory_bytes)} = {model.reason}" for model in models),
        f"memory: {shown(needed)} = {shown(SERVER_BYTES)} for the server + its models"
        + ("" if memory is None else f"; --memory says {quantity(plan.memory_bytes)}"),
        f"start: {startup_s:.0f} s = {POD_START_S:.0f} s + {STARTUP_FACTOR:g} x {seconds:.1f} s to "
        f"load ({how})",
    ]
    click.echo("".join(f"# {note}\n" for note in notes), nl=False)
    click.echo("---\n".join(yaml_text(each) for each in build_manifests(plan)), nl=False)


def _num_gpus(models: list[Requirement]) -> int:
    """Language models have a GPU for each instance; other models may share."""
    language = sum(model.num_gpus for model in models if model.gpu_memory_bytes)
    others = max((model.num_gpus for model in models if not model.gpu_memory_bytes), default=0)
    return max(language, others)


def _served(
    repositories: tuple[Path, ...], checkpoints: tuple[str, ...], serve_from: str | None
) -> tuple[list[str], bool]:
    """Returns the arguments, and whether the models are on a claim."""
    if serve_from is not None:
        if checkpoints:
            raise invalid_arg("--serve-from is for --model-repository; --model names a checkpoint")
        return [f"--model-repository={serve_from}"], False
    if len(repositories) > 1:
        arguments = [f"--model-repository=/models/{path.resolve().name}" for path in repositories]
    else:
        arguments = ["--model-repository=/models" for _ in repositories]
    for text in checkpoints:
        name, has_name, checkpoint = text.rpartition("=")
        arguments.append(f"--model={name}{has_name}/models/{Path(checkpoint).resolve().name}")
    return arguments, True


def _measured_s(folders: list[Path]) -> float:
    """Raises NaiadError if a model does not load."""
    from naiad import log
    from naiad.settings import Settings
    from naiad.tools.check_load import Trial, try_loads

    log.configure(log.LogSettings(log_info=False))
    trials: list[Trial] = []

    def report(trial: Trial) -> None:
        click.echo(trial.line(), err=True)
        trials.append(trial)

    try_loads(Settings(model_repository=tuple(map(str, folders))), (), report)
    failed = [trial.model for trial in trials if trial.error]
    if failed:
        raise invalid_arg(f"{', '.join(failed)} did not load; `naiad check --load` tells more")
    return sum(trial.seconds for trial in trials)


def _read_memory(text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise invalid_arg(f"--memory: '{text}' is not a size, expected e.g. 512Mi or 16Gi")
    return int(match[1]) << (20 if match[2] == "Mi" else 30)
