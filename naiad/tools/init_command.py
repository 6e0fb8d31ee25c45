"""The commands `naiad init python|onnx|torchscript OUT`, `naiad init embeddings CHECKPOINT OUT` and
`naiad init llm --checkpoint CHECKPOINT OUT`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from naiad.core.install_advice import shell_command
from naiad.repository.deploy.llm_config import checkpoint_name
from naiad.repository.deploy.starter import init_model
from naiad.tools.command_context import CONTEXT
from naiad.tools.init_llm import FORMS, check_empty, init_llm, version_folder


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
        click.echo(f"Serve it with: {shell_command()} serve --model-repository {out}")
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


@command.command("embeddings", context_settings=CONTEXT)
@click.option("--name", default="", help="Name of the model. Default: the name of the checkpoint.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def embeddings(name: str, checkpoint: Path, out: Path) -> int:
    """Write a repository that serves an embedding model at /v1/embeddings.

    CHECKPOINT is the folder of an encoder such as BERT, as sentence-transformers writes it.
    """
    from naiad.tools.embeddings.init_embeddings import init_embeddings

    name = name or checkpoint_name(str(checkpoint.resolve()))
    for path in init_embeddings(checkpoint, out, name):
        click.echo(path)
    click.echo(f"Serve it with: {shell_command()} serve --model-repository {out}")
    body = json.dumps({"model": name, "input": "a text"})
    click.echo(f"Try it with:   curl -s 127.0.0.1:8000/v1/embeddings -d '{body}'")
    return 0


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
@click.option(
    "--qformat",
    default="",
    metavar="FORMAT",
    help="Quantize the checkpoint into the repository: int4_awq, fp8 and others.",
)
@click.option(
    "--awq_block_size",
    "--awq-block-size",
    default=128,
    show_default=True,
    help="With --qformat: inputs per scale of int4.",
)
@click.option(
    "--tensor_parallel_size",
    "--tensor-parallel-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Split the model over this many GPUs.",
)
@click.argument("out", type=click.Path(path_type=Path))
def llm(
    checkpoint: str,
    form: str,
    name: str,
    is_decoupled: bool,
    qformat: str,
    awq_block_size: int,
    tensor_parallel_size: int,
    out: Path,
) -> int:
    """Write a repository that serves a language model."""
    if qformat:
        name = name or checkpoint_name(checkpoint)
        checkpoint = str(
            _quantize(
                Path(checkpoint),
                version_folder(checkpoint, out, form, name),
                out,
                qformat,
                awq_block_size,
            )
        )
    for path in init_llm(
        checkpoint,
        out,
        form=form,
        name=name,
        is_decoupled=is_decoupled,
        is_begun=bool(qformat),
        tensor_parallel_size=tensor_parallel_size,
    ):
        click.echo(path)
    click.echo(f"Serve it with: {shell_command()} serve --model-repository {out}")
    return 0


def _quantize(checkpoint: Path, folder: Path, out: Path, qformat: str, awq_block_size: int) -> Path:
    """What an earlier call that was killed has done is kept, and so the repository need not be
    empty then."""
    from naiad.tools.quantize.job import QuantizeJob  # torch takes seconds to import
    from naiad.tools.quantize.options import QuantizeOptions
    from naiad.tools.quantize.report import write_report

    if not folder.with_name(folder.name + ".partial").exists():
        check_empty(out)
    options = QuantizeOptions(
        model_dir=checkpoint, output_dir=folder, qformat=qformat, awq_block_size=awq_block_size
    )

    def log(done: int, total: int, left_s: float) -> None:
        click.echo(f"\r{done} of {total} layers, {left_s:.0f} s left ", nl=done == total, err=True)

    write_report(QuantizeJob(options, log).run(), options)
    return folder
