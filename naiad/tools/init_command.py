"""The commands `naiad init python|onnx|torchscript OUT` and `naiad init llm --checkpoint CHECKPOINT
OUT`."""

from __future__ import annotations

from pathlib import Path

import click

from naiad.tools.command_context import CONTEXT
from naiad.tools.init_llm import FORMS, init_llm
from naiad.tools.init_model import init_model


@click.group("init", context_settings=CONTEXT, help="Write a model repository to start from.")
def command() -> None:
    pass


def _model_command(kind: str, default_name: str, help: str, suffix: str) -> click.Command:
    @click.command(kind, context_settings=CONTEXT, help=help)
    @click.option(
        "--file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=f"Your {suffix} file, which is copied. Default: a small example.",
    )
    @click.option("--name", default="", help="Name of the model. Default: the name of the file.")
    @click.argument("out", type=click.Path(path_type=Path))
    def init(file: Path | None, name: str, out: Path) -> int:
        model = name or (file.stem if file is not None else default_name)
        for path in init_model(kind, out, model, file):
            click.echo(path)
        if kind == "torchscript" and file is None:
            click.echo(f"Write the model with: python {out / model / 'export.py'}")
        click.echo(f"Serve it with: naiad serve --model-repository {out}")
        if file is None:
            request = out / model / "request.json"
            click.echo(
                f"Try it with:   curl -s 127.0.0.1:8000/v2/models/{model}/infer -d @{request}"
            )
        return 0

    return init


command.add_command(
    _model_command("python", "double", "Write a repository with a Python model.", "model.py")
)
command.add_command(
    _model_command("onnx", "double_onnx", "Write a repository with an ONNX model.", ".onnx")
)
command.add_command(
    _model_command(
        "torchscript", "linear", "Write a repository with a TorchScript model.", "TorchScript"
    )
)


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
