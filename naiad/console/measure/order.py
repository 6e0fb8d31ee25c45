"""What a page orders: the fields of a form -> the arguments of `naiad perf` or `naiad analyze`.

Rule: a page fills in typed fields and never an argument of its own, so that a measurement cannot
      read or write files or send anything elsewhere. Pure.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from naiad.errors import invalid_arg

_RANGE = re.compile(r"\d{1,5}(:\d{1,5}(:\d{1,5})?)?")
MAX_LEVELS = 50
REPORT = "report.html"


class PerfOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="perf"):
    """A load of requests on the model as it serves now."""

    model: str
    protocol: Literal["http", "grpc"] = "http"
    concurrency: str = "1:16:5"
    """Requests at a time: a number, START:END or START:END:STEP."""
    batch_size: int = 1
    interval_ms: int = 2000
    prompt_tokens: int = 128
    output_tokens: int = 64


class AnalyzeOrder(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="analyze"
):
    """A search for the best configuration of the model, on a server of its own."""

    model: str
    mode: Literal["quick", "brute", "optuna"] = "quick"
    latency_budget_ms: int = 0
    """Largest p99 that is allowed; 0 for no limit."""
    max_instances: int = 3
    max_batch_size: int = 32
    max_concurrency: int = 64
    interval_ms: int = 1000


Order: TypeAlias = PerfOrder | AnalyzeOrder


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is measured, and how this server is reached."""

    http_url: str
    grpc_url: str
    """Empty if gRPC is switched off."""
    is_tls: bool = False
    is_language: bool = False
    is_decoupled: bool = False
    repository: str = ""
    """A copy of the model's repository that the analysis may change; for `naiad analyze`."""


def decode_order(body: bytes) -> Order:
    """Raises NaiadError."""
    try:
        order: Order = msgspec.json.decode(body, type=PerfOrder | AnalyzeOrder)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_arg(f"the body is not valid: {error}") from None
    _check_number("interval_ms", order.interval_ms, 100, 60_000)
    if isinstance(order, PerfOrder):
        _check_range(order.concurrency)
        _check_number("batch_size", order.batch_size, 1, 4096)
        _check_number("prompt_tokens", order.prompt_tokens, 1, 32_768)
        _check_number("output_tokens", order.output_tokens, 1, 32_768)
    else:
        _check_number("latency_budget_ms", order.latency_budget_ms, 0, 3_600_000)
        _check_number("max_instances", order.max_instances, 1, 64)
        _check_number("max_batch_size", order.max_batch_size, 1, 4096)
        _check_number("max_concurrency", order.max_concurrency, 1, 1024)
    return order


def arguments(order: Order, target: Target) -> list[str]:
    """The command line behind `naiad`, as a person would type it. Raises NaiadError for what this
    model or server cannot be measured with."""
    if isinstance(order, PerfOrder):
        return _perf_arguments(order, target)
    line = ["analyze", "profile", "-m", target.repository, "--profile-models", order.model]
    line += ["--run-config-search-mode", order.mode]
    line += ["--run-config-search-max-instance-count", str(order.max_instances)]
    line += ["--run-config-search-max-model-batch-size", str(order.max_batch_size)]
    line += ["--run-config-search-max-concurrency", str(order.max_concurrency)]
    line += ["--measurement-interval", str(order.interval_ms)]
    if order.latency_budget_ms:
        line += ["--latency-budget", str(order.latency_budget_ms)]
    if target.is_language:
        line += ["--model-type", "llm"]
    return line


def file_arguments(order: Order, folder: Path) -> list[str]:
    """Where the child writes what the page reads."""
    if isinstance(order, PerfOrder):
        return ["--html", str(folder / REPORT), "--progress", "on"]
    places = ["-e", str(folder), "-s", str(folder / "checkpoints")]
    return [*places, "--write-best-config", "--progress", "on"]


def _perf_arguments(order: PerfOrder, target: Target) -> list[str]:
    line = ["perf", "-m", order.model]
    if target.is_language:
        line += ["--service-kind", "openai", "--streaming", "-u", target.http_url]
        line += ["--isl", str(order.prompt_tokens), "--osl", str(order.output_tokens)]
    elif order.protocol == "grpc" or target.is_decoupled:
        if not target.grpc_url or target.is_tls:
            reason = "TLS" if target.grpc_url else "--allow-grpc=false"
            raise invalid_arg(
                f"this page cannot measure over gRPC, because the server has {reason}"
            )
        line += ["-i", "grpc", "-u", target.grpc_url]
        line += ["--streaming"] if target.is_decoupled else []
    else:
        line += ["-i", "http", "-u", target.http_url]
    if target.is_tls:
        # The server measures itself, on this machine; its certificate names another host.
        line += ["--ssl-https-verify-peer", "0", "--ssl-https-verify-host", "0"]
    if not target.is_language:
        line += ["-b", str(order.batch_size)]
    return [*line, "--concurrency-range", order.concurrency, "-p", str(order.interval_ms)]


def _check_number(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise invalid_arg(f"{name} is {value}, expected a number from {low} to {high}")


def _check_range(text: str) -> None:
    if _RANGE.fullmatch(text) is None:
        raise invalid_arg(f"concurrency is '{text}', expected N, START:END or START:END:STEP")
    start, end, step = [*map(int, text.split(":")), 0, 0][:3]
    levels = 1 if not end else (end - start) // max(step, 1) + 1
    if start < 1 or (end and end < start) or levels > MAX_LEVELS or max(start, end) > 4096:
        raise invalid_arg(
            f"concurrency is '{text}', expected at most {MAX_LEVELS} levels from 1 to 4096"
        )
