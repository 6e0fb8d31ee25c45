"""Formats the report on the terminal.

In:  results. Out: text.
Rule: the lines and their order are perf_analyzer's, so that scripts can parse them. Failures,
      stability and token figures, which perf_analyzer does not have, are on lines of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.perf.data.model_facts import ModelFacts
from naiad.perf.measure.gpu_readings import GpuReadings
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.server_statistics import ModelDelta
from naiad.perf.measure.token_metrics import TokenSummary
from naiad.perf.measure.window import Summary
from naiad.perf.options import PerfOptions
from naiad.tables import render_table

TOKEN_ROWS = {
    "time_to_first_token": "Time to first token (ms)",
    "time_to_second_token": "Time to second token (ms)",
    "inter_token_latency": "Inter token latency (ms)",
    "inter_chunk_latency": "Inter chunk latency (ms)",
    "request_latency": "Request latency (ms)",
    "output_token_throughput_per_user": "Output tokens per second per user",
    "output_sequence_length": "Output sequence length (tokens)",
    "input_sequence_length": "Input sequence length (tokens)",
}


def settings_text(options: PerfOptions, facts: ModelFacts) -> str:
    lines = [
        "*** Measurement Settings ***",
        f"  Batch size: {options.batch_size}",
        f"  Service Kind: {options.service_kind.upper()}",
    ]
    figure = "average latency" if options.percentile < 0 else f"p{options.percentile} latency"
    if options.replay:
        lines.append(f"  Replaying {options.replay}")
    elif options.request_count:
        lines.append(f"  Sending {options.request_count} benchmark requests")
    else:
        lines.append(f'  Using "{options.measurement_mode}" mode for stabilization')
        lines.append(f"  Stabilizing using {figure} and throughput")
        if options.measurement_mode == "time_windows":
            lines.append(f"  Measurement window: {options.measurement_interval} msec")
        else:
            lines.append(
                f"  Minimum number of samples in each window: {options.measurement_request_count}"
            )
    levels = options.concurrency_range or options.request_rate_range
    if levels is not None and levels.has_end:
        lines.append(f"  Latency limit: {options.latency_threshold:g} msec")
        if levels.end and options.concurrency_range is not None:
            lines.append(f"  Concurrency limit: {levels.end:g} concurrent requests")
        elif levels.end:
            lines.append(f"  Request Rate limit: {levels.end:g} requests per seconds")
    if options.request_rate_range is not None:
        kind = "uniform" if options.request_distribution == "constant" else "poisson"
        lines.append(f"  Using {kind} distribution on request generation")
    if options.binary_search:
        lines.append("  Using Binary Search algorithm")
    lines.append("  Using asynchronous calls for inference")
    if facts.is_decoupled and not options.is_llm:
        lines.append("  Detected decoupled model, using the first response for measuring latency")
    return "\n".join(lines) + "\n"


def level_text(result: LevelResult, options: PerfOptions, facts: ModelFacts) -> str:
    """Returns the lines below the heading of a level."""
    summary = result.summary
    lines: list[str] = []
    if summary is not None:
        lines += client_lines(summary, result, options, facts)
        if summary.server is not None:
            lines += ["  Server: ", *server_lines(summary.server, facts)]
        if summary.gpu is not None:
            lines += gpu_lines(summary.gpu)
        if summary.tokens is not None:
            lines += ["", token_table(summary.tokens)]
    if result.error:
        lines.append(f"  Given up: {result.error}")
    elif result.verdict.is_stable:
        lines.append(f"  Stable: {result.verdict.explanation}")
    else:
        count = len(result.windows)
        lines.append(f"  [WARNING] Not stable after {count} windows: {result.verdict.explanation}")
    return "\n".join(lines) + "\n"


def client_lines(
    summary: Summary, result: LevelResult, options: PerfOptions, facts: ModelFacts
) -> list[str]:
    lines = ["  Client: ", f"    Request count: {summary.num_requests}"]
    if facts.is_sequence:
        per_s = summary.num_sequences / summary.duration_s
        lines.append(f"    Sequence count: {summary.num_sequences} ({per_s:.2f} seq/sec)")
    if result.level.mode.is_open_loop:
        lines.append(f"    Avg send request rate: {summary.send_per_s:.2f} infer/sec")
        if summary.delayed_percent >= 1:
            lines.append(
                f"    [WARNING] {summary.delayed_percent:.2f}% of the requests were sent more than"
                " 1 ms late: this machine could not keep up with the rate. The delay is part of"
                " the latency."
            )
    if summary.num_failures:
        total = summary.num_requests + summary.num_failures
        lines.append(f"    [WARNING] {summary.num_failures} of {total} requests failed:")
        lines += [
            f"      {count} x {message}" for message, count in list(summary.failures.items())[:5]
        ]
    lines.append(f"    Throughput: {summary.infer_per_s:.6g} infer/sec")
    if facts.is_decoupled:
        lines.append(f"    Response Throughput: {summary.response_per_s:.6g} infer/sec")
    if options.verbose:
        lines.append(f"    Avg client overhead: {summary.overhead_percent:.2f}%")
    if options.percentile < 0:
        lines.append(
            f"    Avg latency: {summary.average_us:.0f} usec"
            f" (standard deviation {summary.deviation_us:.0f} usec)"
        )
    lines += [
        f"    p{percentile} latency: {value:.0f} usec"
        for percentile, value in summary.percentiles_us.items()
    ]
    if not options.streaming:
        lines.append(transport_line(summary, options))
    return lines


def transport_line(summary: Summary, options: PerfOptions) -> str:
    send, receive = summary.send_us, summary.receive_us
    wait = max(0.0, summary.average_us - send - receive)
    protocol = "gRPC" if options.is_grpc else "HTTP"
    if options.is_grpc:
        parts = (
            f"(un)marshal request/response {send + receive:.0f} usec"
            f" + response wait {wait:.0f} usec"
        )
    elif options.verbose:
        parts = f"send {send:.0f} usec + response wait {wait:.0f} usec + receive {receive:.0f} usec"
    else:
        parts = f"send/recv {send + receive:.0f} usec + response wait {wait:.0f} usec"
    return f"    Avg {protocol} time: {summary.average_us:.0f} usec ({parts})"


def server_lines(delta: ModelDelta, facts: ModelFacts, indent: str = "    ") -> list[str]:
    counters = delta.counters
    lines = [
        f"{indent}Inference count: {counters.inference_count}",
        f"{indent}Execution count: {counters.execution_count}",
    ]
    if facts.has_response_cache:
        lines.append(f"{indent}Cache hit count: {counters.count.get('cache_hit', 0)}")
        lines.append(f"{indent}Cache miss count: {counters.count.get('cache_miss', 0)}")
    lines.append(f"{indent}Successful request count: {counters.count.get('success', 0)}")
    parts = [f"overhead {delta.overhead_us:.0f} usec", f"queue {delta.queue_us:.0f} usec"]
    if facts.has_response_cache:
        parts.append(f"cache hit/miss {delta.cache_us:.0f} usec")
    if delta.composing:
        parts.append(f"compute {delta.compute_us:.0f} usec")
    else:
        parts += [
            f"compute {phase} {delta.phase_us(f'compute_{phase}'):.0f} usec"
            for phase in ("input", "infer", "output")
        ]
    average = f"{counters.average_us('success'):.0f} usec"
    lines += [f"{indent}Avg request latency: {average} ({' + '.join(parts)})", ""]
    if delta.composing:
        lines.append("  Composing models: ")
        for part in delta.composing:
            lines += [
                f"  {part.name}, version: {part.version or 'latest'}",
                *server_lines(part, ModelFacts(part.name), "      "),
            ]
    return lines


def gpu_lines(gpu: GpuReadings) -> list[str]:
    lines = ["  Server Prometheus Metrics: "]
    if gpu.problem:
        lines.append(f"    [WARNING] the metrics page could not be read: {gpu.problem}")
    lines.append("    Avg GPU Utilization:")
    lines += [f"      {name} : {100 * value:.1f}%" for name, value in gpu.utilization.items()]
    lines.append("    Avg GPU Power Usage:")
    lines += [f"      {name} : {value:.1f} watts" for name, value in gpu.power_watts.items()]
    lines.append("    Max GPU Memory Usage:")
    lines += [f"      {name} : {value:.0f} bytes" for name, value in gpu.memory_used_bytes.items()]
    lines.append("    Total GPU Memory:")
    return lines + [
        f"      {name} : {value:.0f} bytes" for name, value in gpu.memory_total_bytes.items()
    ]


def token_table(tokens: TokenSummary) -> str:
    rows = [
        (
            title,
            *(
                f"{value:,.2f}"
                for value in (
                    row.average,
                    row.minimum,
                    row.maximum,
                    row.p99,
                    row.p90,
                    row.p75,
                    row.p50,
                )
            ),
        )
        for name, title in TOKEN_ROWS.items()
        if (row := tokens.statistics.get(name)) is not None
    ]
    lines = [
        render_table(["Statistic", "avg", "min", "max", "p99", "p90", "p75", "p50"], rows).rstrip(
            "\n"
        )
    ]
    lines.append(f"  Output token throughput: {tokens.output_tokens_per_s:,.2f} tokens/sec")
    if tokens.num_prompt_tokens_known:
        lines.append(f"  Input token throughput: {tokens.input_tokens_per_s:,.2f} tokens/sec")
    lines.append(f"  Request throughput: {tokens.requests_per_s:,.2f} requests/sec")
    if tokens.goodput_per_s is not None:
        lines.append(
            f"  Request goodput: {tokens.goodput_per_s:,.2f} requests/sec"
            f" ({tokens.good_percent:.1f}% within all limits)"
        )
    if tokens.counted_by == "chunks":
        lines.append(
            "  Each chunk with text is counted as one token, because the server does not report the"
            " number of tokens (use --tokenizer to count them)."
        )
    return "\n".join(lines)


def last_table(results: Sequence[LevelResult], options: PerfOptions) -> str:
    figure = "Average" if options.percentile < 0 else f"p{options.percentile}"
    lines = [f"Inferences/Second vs. Client {figure} Batch Latency"]
    for result in results:
        summary = result.summary
        if summary is None:
            lines.append(f"{result.level.label}, given up: {result.error}")
            continue
        if result.error:
            mark = " (given up)"
        else:
            mark = "" if result.verdict.is_stable else " (not stable)"
        rate = f"throughput: {summary.infer_per_s:.6g} infer/sec"
        latency = f"latency {summary.latency_us(options.percentile):.0f} usec"
        lines.append(f"{result.level.label}, {rate}, {latency}{mark}")
    return "\n".join(lines) + "\n"
