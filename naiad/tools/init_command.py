"""The command `naiad init llm --checkpoint CHECKPOINT OUT`."""

from __future__ import annotations

from pathlib import Path

import click

from naiad.tools.command_context import CONTEXT
from naiad.tools.init_llm import FORMS, init_llm


@click.group("init", context_settings=CONTEXT, help="Write a model repository to start from.")
def command() -> None:
    pass


@command.command("llm", context_settings=CONTEXT)
@click.option(
    "--checkpoint",
    required=True,
    metavar="PATH",
    help="Checkpoint folder, .gguf file, name known to `naiad pull`, or Hugging Face hub id.",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="one",
    help="one: a single model. four-part: TensorRT-LLM's preprocessing, tensorrt_llm, "
    "postprocessing and ensemble models, and its BLS model. Default: one.",
)
@click.option(
    "--name",
    default="",
    help="Name of the model, with --form one. Default: the name of the checkpoint.",
)
@click.option(
    "--decoupled/--whole",
    "is_decoupled",
    default=True,
    help="With --form four-part: stream responses, or send one response per request. "
    "Default: --decoupled.",
)
@click.argument("out", type=click.Path(path_type=Path))
def llm(checkpoint: str, form: str, name: str, is_decoupled: bool, out: Path) -> int:
    """Write a repository that serves a language model."""
    for path in init_llm(checkpoint, out, form=form, name=name, is_decoupled=is_decoupled):
        click.echo(path)
    click.echo(f"Serve it with: naiad serve --model-repository {out}")
    return 0
