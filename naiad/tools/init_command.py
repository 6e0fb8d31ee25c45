"""`naiad init llm --checkpoint CHECKPOINT OUT`."""

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
    help="Folder, .gguf file, name of `naiad pull`, or hub id.",
)
@click.option(
    "--form",
    type=click.Choice(FORMS),
    default="one",
    help="One model, or TensorRT-LLM's four parts and its BLS model.",
)
@click.option("--name", default="", help="Of the one model; by default the checkpoint's.")
@click.option(
    "--decoupled/--whole",
    "is_decoupled",
    default=True,
    help="Whether the four-part form can stream.",
)
@click.argument("out", type=click.Path(path_type=Path))
def llm(checkpoint: str, form: str, name: str, is_decoupled: bool, out: Path) -> int:
    """Write a repository that serves a language model."""
    for path in init_llm(checkpoint, out, form=form, name=name, is_decoupled=is_decoupled):
        click.echo(path)
    click.echo(f"Serve it with: naiad serve --model-repository {out}")
    return 0
