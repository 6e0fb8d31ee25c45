"""What a quantization gave, as JSON and as one HTML page, in the checkpoint's own folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.errors import NaiadError
from naiad.tools.page.page import Fact, card, page, table
from naiad.tools.quantize.job import Outcome
from naiad.tools.quantize.options import QuantizeOptions
from naiad.tools.quantize.speed import tokens_per_second

JSON_NAME = "naiad_quantize_report.json"
HTML_NAME = "naiad_quantize_report.html"


class Speed(msgspec.Struct, frozen=True):
    """Tokens per second of one request on the native engine; None with a reason where the engine
    cannot serve the checkpoint on this machine."""

    before: float | None
    after: float | None
    reason: str = ""

    def summary(self) -> str:
        texts = [f"{one:.1f}" if one is not None else "?" for one in (self.before, self.after)]
        reason = f" ({self.reason})" if self.reason else ""
        return f"{texts[0]} -> {texts[1]} tokens per second, one request{reason}"


def measure(options: QuantizeOptions) -> Speed:
    rates: list[float | None] = []
    reason = ""
    for folder in (options.model_dir, options.output_dir):
        try:
            rates.append(tokens_per_second(folder, options.device))
        except (NaiadError, RuntimeError, MemoryError) as error:  # RuntimeError: torch's own
            rates.append(None)
            reason = str(error).partition("\n")[0]
    return Speed(rates[0], rates[1], reason)


def write_report(outcome: Outcome, options: QuantizeOptions, speed: Speed | None = None) -> Path:
    quality = outcome.quality
    values = {"options": options, "outcome": outcome, "tokens_per_second": speed}
    (outcome.output_dir / JSON_NAME).write_bytes(
        msgspec.json.format(msgspec.json.encode(values, enc_hook=str))
    )
    change = quality.perplexity_after / quality.perplexity_before - 1.0
    rows = [
        ["perplexity", f"{quality.perplexity_before:.3f}", f"{quality.perplexity_after:.3f}"],
        ["size of the weights", _gigabytes(outcome.bytes_before), _gigabytes(outcome.bytes_after)],
    ]
    if speed is not None:
        rows.append(["tokens per second, one request", _rate(speed.before), _rate(speed.after)])
    facts = [
        Fact(
            "Perplexity",
            f"{quality.perplexity_after:.2f}",
            f"{change:+.1%} of {quality.perplexity_before:.2f}",
        ),
        Fact("Size", _gigabytes(outcome.bytes_after), f"of {_gigabytes(outcome.bytes_before)}"),
        Fact(
            "Divergence",
            f"{quality.divergence:.4f}",
            "nats per token, compared with the checkpoint",
        ),
        Fact("Same likeliest token", f"{quality.agreement:.1%}", f"of {quality.num_tokens} tokens"),
    ]
    footer = [
        (
            "Measured on",
            f"{quality.num_tokens} tokens of the calibration text that were not calibrated on",
        ),
        (
            "Command",
            f"naiad quantize --model_dir {options.model_dir} --output_dir {options.output_dir} "
            f"--qformat {options.qformat}",
        ),
        (
            "KV cache",
            "scales for fp8; the measured quality is that of a 16-bit cache"
            if options.kv_cache_dtype
            else "16 bits",
        ),
        ("Time", f"{outcome.seconds:.0f} s, {outcome.num_resumed} layers from an earlier run"),
    ]
    title = f"{options.model_dir.name} in {options.qformat}"
    body = card("Before and after", table(["", "before", "after"], rows))
    path = outcome.output_dir / HTML_NAME
    path.write_text(page(title, "naiad quantize", facts, [body], footer))
    return path


def _rate(rate: float | None) -> str:
    return "not measured" if rate is None else f"{rate:.1f}"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
