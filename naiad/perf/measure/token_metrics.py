"""Computes the figures of language models: time to first token, inter-token latency, token rates
and goodput.

In:  Records whose responses are TokenChunks. Out: a TokenSummary.
Rule: these figures are defined only here. The inter-token latency of a request is
      (end - first token) / (tokens - 1), as in genai-perf. The gaps between chunks are reported as
      well, because an average hides a long stall.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from naiad.perf.measure.recorder import Detail, Records

GOODPUT_METRICS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "output_token_throughput_per_request",
)


class TokenChunk(msgspec.Struct, frozen=True, gc=False):
    """The recorded part of one response."""

    num_tokens: int
    """1 for a chunk with text, 0 for a chunk without."""
    prompt_tokens: int = -1
    """Number of prompt tokens that the server reports; -1 if it does not."""
    completion_tokens: int = -1
    text: str = ""
    """The text, if a tokenizer counts its tokens later."""
    raw: Any = b""
    """The response itself, if it is exported: an event of a stream, or (head, body)."""


class Statistic(msgspec.Struct, frozen=True):
    average: float
    minimum: float
    maximum: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    deviation: float


class TokenSummary(msgspec.Struct, frozen=True):
    num_requests: int
    statistics: dict[str, Statistic]
    """Statistics by name; times in ms, lengths in tokens, rates in tokens per second."""
    output_tokens_per_s: float
    input_tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float | None
    """Requests per second within all limits of --goodput; None without limits."""
    good_percent: float | None
    counted_by: str
    """Source of the number of output tokens: usage, tokenizer or chunks."""
    num_prompt_tokens_known: int


def statistic(values: list[float]) -> Statistic:
    array = np.array(values, float)
    p50, p75, p90, p95, p99 = (float(value) for value in np.percentile(array, [50, 75, 90, 95, 99]))
    return Statistic(
        float(array.mean()),
        float(array.min()),
        float(array.max()),
        p50,
        p75,
        p90,
        p95,
        p99,
        float(array.std()),
    )


class TokenCounting(msgspec.Struct, frozen=True):
    """How tokens are counted if the server does not report them."""

    item_tokens: list[int] = []
    """Number of prompt tokens of each prepared request; empty if unknown."""
    count: Callable[[str], int] | None = None
    """Counts the tokens of a text with the tokenizer of --tokenizer."""


class RequestTokens(msgspec.Struct, frozen=True):
    ttft_ms: float
    second_ms: float
    """Time from the first to the second chunk with text; -1 if there is only one."""
    latency_ms: float
    itl_ms: float
    """Inter-token latency; -1 for fewer than two tokens."""
    gaps_ms: list[float]
    num_output: int
    num_input: int
    """-1 if unknown."""
    counted_by: str


def request_tokens(detail: Detail, end_ns: int, counting: TokenCounting) -> RequestTokens | None:
    """Returns None for a response without text."""
    chunks: list[TokenChunk] = [
        chunk for chunk in detail.responses if isinstance(chunk, TokenChunk)
    ]
    times = [
        time_ns
        for time_ns, chunk in zip(detail.response_ns, chunks, strict=False)
        if chunk.num_tokens
    ]
    if not times:
        return None
    reported = next(
        (chunk.completion_tokens for chunk in reversed(chunks) if chunk.completion_tokens >= 0), -1
    )
    prompt = next(
        (chunk.prompt_tokens for chunk in reversed(chunks) if chunk.prompt_tokens >= 0), -1
    )
    if prompt < 0 and counting.item_tokens:
        prompt = counting.item_tokens[detail.item]
    if reported >= 0:
        counted_by, num_output = "usage", reported
    elif counting.count is not None:
        counted_by = "tokenizer"
        num_output = counting.count("".join(chunk.text for chunk in chunks))
    else:
        counted_by, num_output = "chunks", sum(chunk.num_tokens for chunk in chunks)
    itl_ms = -1.0
    if num_output > 1 and len(times) > 1:
        itl_ms = (times[-1] - times[0]) / 1e6 / (num_output - 1)
    return RequestTokens(
        (times[0] - detail.start_ns) / 1e6,
        (times[1] - times[0]) / 1e6 if len(times) > 1 else -1.0,
        (end_ns - detail.start_ns) / 1e6,
        itl_ms,
        [(later - earlier) / 1e6 for earlier, later in itertools.pairwise(times)],
        num_output,
        prompt,
        counted_by,
    )


def summarize_tokens(
    records: Records, duration_s: float, goodput: dict[str, float], counting: TokenCounting
) -> TokenSummary | None:
    pairs = zip(records.details, records.end.tolist(), strict=True)
    requests = [
        tokens
        for detail, end_ns in pairs
        if (tokens := request_tokens(detail, end_ns, counting)) is not None
    ]
    if not requests:
        return None
    return summarize_requests(requests, duration_s, goodput)


def summarize_requests(
    requests: list[RequestTokens], duration_s: float, goodput: dict[str, float]
) -> TokenSummary:
    columns: dict[str, list[float]] = {
        "time_to_first_token": [tokens.ttft_ms for tokens in requests],
        "time_to_second_token": [tokens.second_ms for tokens in requests if tokens.second_ms >= 0],
        "inter_token_latency": [tokens.itl_ms for tokens in requests if tokens.itl_ms >= 0],
        "inter_chunk_latency": [gap for tokens in requests for gap in tokens.gaps_ms],
        "request_latency": [tokens.latency_ms for tokens in requests],
        "output_token_throughput_per_user": [
            1000 / tokens.itl_ms for tokens in requests if tokens.itl_ms > 0
        ],
        "output_sequence_length": [float(tokens.num_output) for tokens in requests],
        "input_sequence_length": [
            float(tokens.num_input) for tokens in requests if tokens.num_input >= 0
        ],
    }
    good = sum(is_good(tokens, goodput) for tokens in requests)
    num_known = sum(tokens.num_input >= 0 for tokens in requests)
    return TokenSummary(
        len(requests),
        {name: statistic(values) for name, values in columns.items() if values},
        sum(tokens.num_output for tokens in requests) / duration_s,
        sum(max(0, tokens.num_input) for tokens in requests) / duration_s,
        len(requests) / duration_s,
        good / duration_s if goodput else None,
        100 * good / len(requests) if goodput else None,
        "usage"
        if all(tokens.counted_by == "usage" for tokens in requests)
        else requests[0].counted_by,
        num_known,
    )


def is_good(tokens: RequestTokens, goodput: dict[str, float]) -> bool:
    """Returns True if all times are at most and all rates at least their limits."""
    seconds = tokens.latency_ms / 1000
    values: dict[str, Any] = {
        "time_to_first_token": tokens.ttft_ms,
        "inter_token_latency": max(0.0, tokens.itl_ms),
        "request_latency": tokens.latency_ms,
        "output_token_throughput_per_request": tokens.num_output / seconds if seconds else 0.0,
    }
    for name, limit in goodput.items():
        is_rate = name.startswith("output_token_throughput")
        if (values[name] < limit) if is_rate else (values[name] > limit):
            return False
    return True
