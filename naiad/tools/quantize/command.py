"""`naiad quantize --model_dir DIR --output_dir DIR --qformat int4_awq`, with the flags of
TensorRT-LLM's quantize.py."""

from __future__ import annotations

from pathlib import Path

import click

from naiad.core.install_advice import install_command
from naiad.errors import invalid_arg
from naiad.tools.command_context import CONTEXT
from naiad.tools.quantize.options import LAYOUTS, QFORMATS, QuantizeOptions


@click.command("quantize", context_settings=CONTEXT)
@click.option(
    "--model_dir",
    "--model-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of a plain checkpoint.",
)
@click.option(
    "--output_dir",
    "--output-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to make.",
)
@click.option("--qformat", required=True, metavar="FORMAT", help=f"One of {', '.join(QFORMATS)}.")
@click.option(
    "--dtype",
    default="auto",
    type=click.Choice(["auto", "bfloat16", "float16", "float32"]),
    help="Of what is not quantized.",
)
@click.option(
    "--awq_block_size",
    "--awq-block-size",
    default=128,
    show_default=True,
    help="Inputs per scale of int4: 128, 64 or 32.",
)
@click.option(
    "--batch_size",
    "--batch-size",
    default=8,
    show_default=True,
    help="Stretches of text computed at once.",
)
@click.option(
    "--calib_dataset",
    "--calib-dataset",
    type=click.Path(path_type=Path),
    help="A text file; by default one that comes along.",
)
@click.option(
    "--calib_size",
    "--calib-size",
    default=128,
    show_default=True,
    help="Stretches of text to calibrate with.",
)
@click.option(
    "--calib_max_seq_length",
    "--calib-max-seq-length",
    default=512,
    show_default=True,
    help="Tokens of a stretch.",
)
@click.option(
    "--kv_cache_dtype",
    "--kv-cache-dtype",
    default="",
    help="fp8: calibrate scales for a KV cache in fp8, too.",
)
@click.option(
    "--measure_speed/--no_measure_speed",
    "--measure-speed/--no-measure-speed",
    default=True,
    show_default=True,
    help="Measure tokens per second before and after, for the report.",
)
@click.option(
    "--quantize_lm_head",
    "--quantize-lm-head",
    is_flag=True,
    help="The head too; it stays in 16 bits otherwise.",
)
@click.option("--device", default="auto", help="auto, cpu, cuda or cuda:N.")
@click.option("--seed", default=1234, show_default=True)
@click.option(
    "--form",
    "layout",
    default=LAYOUTS[0],
    type=click.Choice(LAYOUTS),
    show_default=True,
    help="Layout of the checkpoint.",
)
def command(measure_speed: bool, **values: object) -> int:
    """Quantize a checkpoint, and report what that costs in quality.

    A run that was interrupted goes on where it was when it is started again.
    """
    options = QuantizeOptions(**values)  # type: ignore[arg-type]
    options.check()
    try:
        from naiad.tools.quantize.job import (
            QuantizeJob,  # torch and transformers take seconds to import
        )
    except ImportError as error:
        raise invalid_arg(
            f"naiad quantize needs torch and transformers ({error}): {install_command('llm')}"
        ) from None
    from naiad.tools.quantize.report import measure, write_report

    def log(done: int, total: int, left_s: float) -> None:
        click.echo(f"\r{done} of {total} layers, {left_s:.0f} s left ", nl=done == total, err=True)

    outcome = QuantizeJob(options, log).run()
    quality = outcome.quality
    click.echo(f"perplexity {quality.perplexity_before:.3f} -> {quality.perplexity_after:.3f}")
    click.echo(
        f"divergence {quality.divergence:.4f} nats per token, the same likeliest token in "
        f"{quality.agreement:.1%}"
    )
    click.echo(
        f"{outcome.bytes_before / 1e6:.1f} MB -> {outcome.bytes_after / 1e6:.1f} MB in "
        f"{outcome.seconds:.0f} s"
    )
    speed = measure(options) if measure_speed else None
    if speed is not None:
        click.echo(speed.summary())
    click.echo(f"report: {write_report(outcome, options, speed)}")
    if options.kv_cache_dtype:
        click.echo("The scales of the KV cache take effect with kv_cache_dtype: fp8.")
    click.echo(f"Serve it with: naiad init llm --checkpoint {options.output_dir} REPOSITORY")
    return 0
