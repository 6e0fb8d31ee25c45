"""Declares the options of `naiad perf`.

Names and meanings are perf_analyzer's where it has the option. The command line and docs/perf.md
derive from PerfOptions.
Rule: prepare.py checks everything that depends on the server.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from naiad.perf.measure.ranges import (
    IdRange,
    Range,
    composing_models,
    goodput_limit,
    header,
    id_range,
    number_range,
    one_of,
    request_parameter,
    tensor_shape,
    whole_range,
)
from naiad.perf.measure.token_metrics import GOODPUT_METRICS
from naiad.settings.option import Group, OptionError
from naiad.settings.value import at_least, integer, real

MODEL = Group("Model")
LOAD = Group("Load")
MEASUREMENT = Group("Measurement")
DATA = Group("Input data")
LLM = Group("Language models")
SERVER = Group("Server")
REPORT = Group("Reports")
COMPATIBLE = Group("Accepted for perf_analyzer's command lines")

positive = at_least(1, integer)


class PerfOptions(msgspec.Struct, frozen=True, kw_only=True):
    model: Annotated[
        str, MODEL("The model to measure.", aliases=("m", "model-name"), metavar="NAME")
    ] = ""
    model_version: Annotated[
        str,
        MODEL(
            "Version of the model.", aliases=("x",), metavar="N", default_text="the server's choice"
        ),
    ] = ""
    service_kind: Annotated[
        str,
        MODEL(
            "Kind of the server: triton or openai.",
            parse=one_of("triton", "openai"),
            metavar="KIND",
        ),
    ] = "triton"
    endpoint: Annotated[
        str,
        MODEL(
            "Path of the requests to an OpenAI-style server: v1/chat/completions, v1/completions "
            "or v1/embeddings.",
            metavar="PATH",
        ),
    ] = "v1/chat/completions"
    bls_composing_models: Annotated[
        list[tuple[str, str]],
        MODEL(
            "Models that a BLS model calls, as name or name:version, separated by commas. Their "
            "statistics are shown as well.",
            parse=composing_models,
            metavar="MODELS",
        ),
    ] = []
    verbose: Annotated[
        bool, MODEL("Show the figures of each window.", aliases=("v",), is_switch=True)
    ] = False

    concurrency_range: Annotated[
        Range | None,
        LOAD(
            "Number of concurrent requests, as start:end:step. With end 0, concurrency increases "
            "until latency exceeds --latency-threshold.",
            parse=whole_range,
            metavar="RANGE",
        ),
    ] = None
    request_rate_range: Annotated[
        Range | None,
        LOAD(
            "Number of requests per second, as start:end:step. With end 0, the rate increases "
            "until latency exceeds --latency-threshold.",
            parse=number_range,
            metavar="RANGE",
        ),
    ] = None
    request_distribution: Annotated[
        str,
        LOAD(
            "Distribution of the intervals between requests of a rate: constant or poisson.",
            parse=one_of("constant", "poisson"),
            metavar="KIND",
        ),
    ] = "constant"
    request_intervals: Annotated[
        str,
        LOAD("File of intervals between requests in microseconds, one per line.", metavar="FILE"),
    ] = ""
    periodic_concurrency_range: Annotated[
        Range | None,
        LOAD(
            "Send a burst that grows, as start:end:step: start requests, then step more each time "
            "until end requests were sent. Requires --profile-export-file.",
            parse=whole_range,
            metavar="RANGE",
        ),
    ] = None
    request_period: Annotated[
        int, LOAD("Number of responses to a request before the burst grows.", parse=positive)
    ] = 10
    replay: Annotated[
        str,
        LOAD(
            "Trace to replay: JSON lines with a 'timestamp' in ms and a prompt or its length.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    replay_speed: Annotated[
        float,
        LOAD(
            "Speed of the replay. 2 replays a trace in half the time.",
            parse=at_least(0.0001, real),
            is_extension=True,
        ),
    ] = 1.0
    binary_search: Annotated[
        bool,
        LOAD("Search the range for the highest level within --latency-threshold.", is_switch=True),
    ] = False
    latency_threshold: Annotated[
        float,
        LOAD(
            "Maximum latency. Stop at the first level that exceeds it. 0 means no limit.",
            aliases=("l",),
            parse=at_least(0, real),
            metavar="MS",
        ),
    ] = 0.0
    num_of_sequences: Annotated[
        int,
        LOAD(
            "Number of concurrent sequences, for request rates on sequence models.", parse=positive
        ),
    ] = 4
    serial_sequences: Annotated[
        bool, LOAD("Send at most one request of a sequence at a time.", is_switch=True)
    ] = False
    processes: Annotated[
        int,
        LOAD("Number of processes that generate the load.", parse=positive, is_extension=True),
    ] = 1

    measurement_mode: Annotated[
        str,
        MEASUREMENT(
            "What ends a window: time_windows (its length) or count_windows (a request count).",
            parse=one_of("time_windows", "count_windows"),
            metavar="MODE",
        ),
    ] = "time_windows"
    measurement_interval: Annotated[
        int, MEASUREMENT("Length of a window.", aliases=("p",), parse=positive, metavar="MS")
    ] = 5000
    measurement_request_count: Annotated[
        int, MEASUREMENT("Number of requests in a window, for count_windows.", parse=positive)
    ] = 50
    request_count: Annotated[
        int,
        MEASUREMENT(
            "Send exactly this many requests in a single window. 0 means that windows are used.",
            parse=at_least(0, integer),
        ),
    ] = 0
    warmup_request_count: Annotated[
        int,
        MEASUREMENT("Number of requests to send before measuring.", parse=at_least(0, integer)),
    ] = 0
    stability_percentage: Annotated[
        float,
        MEASUREMENT(
            "Maximum difference between the last three windows of a stable measurement.",
            aliases=("s",),
            parse=at_least(0, real),
            metavar="PERCENT",
        ),
    ] = 10.0
    max_trials: Annotated[
        int,
        MEASUREMENT(
            "Maximum number of windows to wait for a stable measurement.",
            aliases=("r",),
            parse=positive,
        ),
    ] = 10
    percentile: Annotated[
        int,
        MEASUREMENT(
            "Percentile of the latency that decides about stability and --latency-threshold. -1 "
            "means the average.",
            metavar="N",
        ),
    ] = -1

    batch_size: Annotated[
        int, DATA("Batch size of each request.", aliases=("b",), parse=positive)
    ] = 1
    input_data: Annotated[
        tuple[str, ...],
        DATA(
            "Source of the input data: zero, random, a JSON file or a folder. A JSON file may be "
            "repeated.",
            metavar="SOURCE",
            default_text="random",
        ),
    ] = ()
    validation_tolerance: Annotated[
        float,
        DATA(
            "What a float of a response may differ by from validation_data, absolutely or relative "
            "to the expected value. 0 compares bytes.",
            parse=at_least(0.0, real),
            metavar="NUMBER",
            is_extension=True,
        ),
    ] = 0.0
    shape: Annotated[
        tuple[Any, ...],
        DATA(
            "Shape of an input with dynamic dimensions, e.g. name:1,2,3. May be repeated.",
            parse=tensor_shape,
            metavar="NAME:SHAPE",
        ),
    ] = ()
    string_data: Annotated[str, DATA("Text for all string inputs.")] = ""
    string_length: Annotated[int, DATA("Length of random strings.", parse=at_least(0, integer))] = (
        128
    )
    request_parameter: Annotated[
        tuple[Any, ...],
        DATA(
            "Parameter of each request, as name:value:type. May be repeated.",
            parse=request_parameter,
            metavar="PARAMETER",
        ),
    ] = ()
    sequence_length: Annotated[
        int,
        DATA(
            "Number of requests in a sequence.",
            parse=positive,
            default_text="20, or the length of the data",
        ),
    ] = 0
    sequence_length_variation: Annotated[
        float,
        DATA("Variation of sequence lengths.", parse=at_least(0, real), metavar="PERCENT"),
    ] = 20.0
    sequence_id_range: Annotated[
        IdRange,
        DATA(
            "Ids of sequences, as start:end.",
            parse=id_range,
            metavar="RANGE",
            default_text="1, without an end",
        ),
    ] = IdRange(1)
    input_tensor_format: Annotated[
        str,
        DATA(
            "Format of tensors in HTTP requests: binary or json.",
            parse=one_of("binary", "json"),
            metavar="FORMAT",
        ),
    ] = "binary"
    output_tensor_format: Annotated[
        str,
        DATA(
            "Format of tensors in HTTP responses: binary or json.",
            parse=one_of("binary", "json"),
            metavar="FORMAT",
        ),
    ] = "binary"
    shared_memory: Annotated[
        str,
        DATA(
            "Pass tensors in shared memory: none, system or cuda.",
            parse=one_of("none", "system", "cuda"),
            metavar="KIND",
        ),
    ] = "none"
    output_shared_memory_size: Annotated[
        int, DATA("Number of bytes to reserve for an output of unknown size.", parse=positive)
    ] = 102400

    llm: Annotated[
        bool,
        LLM(
            "Measure time to first token, inter-token latency and token rates.",
            is_switch=True,
            is_extension=True,
        ),
    ] = False
    synthetic_input_tokens_mean: Annotated[
        int,
        LLM(
            "Mean number of tokens of a synthetic prompt.",
            aliases=("isl",),
            parse=positive,
            metavar="N",
            default_text="550",
        ),
    ] = 0
    synthetic_input_tokens_stddev: Annotated[
        float, LLM("Standard deviation of that number.", parse=at_least(0, real), metavar="N")
    ] = 0.0
    output_tokens_mean: Annotated[
        int,
        LLM(
            "Mean number of tokens to generate.",
            aliases=("osl",),
            parse=positive,
            metavar="N",
            default_text="the model's choice",
        ),
    ] = 0
    output_tokens_stddev: Annotated[
        float, LLM("Standard deviation of that number.", parse=at_least(0, real), metavar="N")
    ] = 0.0
    num_prompts: Annotated[int, LLM("Number of different synthetic prompts.", parse=positive)] = 100
    shared_prefix_tokens: Annotated[
        int,
        LLM(
            "Number of tokens that all prompts begin with, to measure prefix caches.",
            parse=at_least(0, integer),
            is_extension=True,
        ),
    ] = 0
    input_file: Annotated[
        str,
        LLM(
            "File of prompts: one prompt per line, or JSON lines with 'text' or 'prompt'.",
            metavar="FILE",
        ),
    ] = ""
    tokenizer: Annotated[
        str,
        LLM(
            "tokenizer.json, or a folder that contains it, to count tokens exactly.", metavar="PATH"
        ),
    ] = ""
    goodput: Annotated[
        tuple[Any, ...],
        LLM(
            "Limit that a request must satisfy to count for goodput, as metric:value. May be "
            f"repeated. Metrics: {', '.join(GOODPUT_METRICS)}.",
            parse=goodput_limit,
            metavar="LIMIT",
        ),
    ] = ()
    extra_inputs: Annotated[
        tuple[str, ...],
        LLM("Field of each OpenAI request, as name:value. May be repeated.", metavar="FIELD"),
    ] = ()

    url: Annotated[
        str,
        SERVER(
            "Address of the server.",
            aliases=("u",),
            metavar="HOST:PORT",
            default_text="localhost:8000, or localhost:8001 for gRPC",
        ),
    ] = ""
    protocol: Annotated[
        str,
        SERVER(
            "Protocol of the requests: http or grpc.",
            aliases=("i",),
            parse=one_of("http", "grpc"),
            metavar="PROTOCOL",
        ),
    ] = "http"
    header: Annotated[
        tuple[Any, ...],
        SERVER(
            "Header of each request, or metadata for gRPC, as 'Name:Value'. May be repeated.",
            aliases=("H",),
            parse=header,
            metavar="HEADER",
        ),
    ] = ()
    streaming: Annotated[
        bool,
        SERVER(
            "Use gRPC's ModelStreamInfer, HTTP's generate_stream or an OpenAI event stream.",
            is_switch=True,
        ),
    ] = False
    grpc_compression_algorithm: Annotated[
        str,
        SERVER(
            "Compression of gRPC requests: none, gzip or deflate.",
            parse=one_of("none", "gzip", "deflate"),
            metavar="KIND",
        ),
    ] = "none"
    ssl_grpc_use_ssl: Annotated[bool, SERVER("Use gRPC over TLS.", is_switch=True)] = False
    ssl_grpc_root_certifications_file: Annotated[
        str, SERVER("gRPC: CA certificates of the server, as PEM.", metavar="FILE")
    ] = ""
    ssl_grpc_private_key_file: Annotated[
        str, SERVER("gRPC: private key of the client, as PEM.", metavar="FILE")
    ] = ""
    ssl_grpc_certificate_chain_file: Annotated[
        str, SERVER("gRPC: certificate of the client, as PEM.", metavar="FILE")
    ] = ""
    ssl_https_verify_peer: Annotated[
        int, SERVER("HTTPS: 0 accepts any certificate of the server.")
    ] = 1
    ssl_https_verify_host: Annotated[
        int, SERVER("HTTPS: 0 accepts a certificate for another host name.")
    ] = 2
    ssl_https_ca_certificates_file: Annotated[
        str, SERVER("HTTPS: CA certificates of the server, as PEM.", metavar="FILE")
    ] = ""
    ssl_https_client_certificate_file: Annotated[
        str, SERVER("HTTPS: certificate of the client, as PEM.", metavar="FILE")
    ] = ""
    ssl_https_private_key_file: Annotated[
        str, SERVER("HTTPS: private key of the client, as PEM.", metavar="FILE")
    ] = ""
    trace_level: Annotated[
        tuple[str, ...],
        SERVER(
            "Trace the model during the run: OFF, TIMESTAMPS or TENSORS. May be repeated.",
            metavar="LEVEL",
        ),
    ] = ()
    trace_rate: Annotated[int, SERVER("Trace one request in N.", parse=positive, metavar="N")] = (
        1000
    )
    trace_count: Annotated[int, SERVER("Number of requests to trace. -1 means no limit.")] = -1
    log_frequency: Annotated[
        int,
        SERVER(
            "Number of traces in one file. 0 writes all traces to one file.",
            parse=at_least(0, integer),
        ),
    ] = 0

    latency_report_file: Annotated[
        str, REPORT("Write the report as CSV to this file.", aliases=("f",), metavar="FILE")
    ] = ""
    verbose_csv: Annotated[bool, REPORT("Add columns to the CSV file.", is_switch=True)] = False
    profile_export_file: Annotated[
        str,
        REPORT(
            "Write the times and tensors of every request as JSON to this file.", metavar="FILE"
        ),
    ] = ""
    collect_metrics: Annotated[
        bool, REPORT("Read GPU metrics during each window.", is_switch=True)
    ] = False
    metrics_url: Annotated[str, REPORT("URL of the GPU metrics.", metavar="URL")] = (
        "localhost:8002/metrics"
    )
    metrics_interval: Annotated[
        int, REPORT("Interval between readings of GPU metrics.", parse=positive, metavar="MS")
    ] = 1000
    compare: Annotated[
        tuple[str, ...],
        REPORT(
            "Compare with another run: the flags in which it differs, e.g. "
            '"triton=-u localhost:9000", or a file written by --json. May be repeated.',
            metavar="RUN",
            is_extension=True,
        ),
    ] = ()
    label: Annotated[str, REPORT("Name of this run in a comparison.", is_extension=True)] = ""
    json: Annotated[
        str,
        REPORT(
            "Write the results as JSON to this file, e.g. for a later --compare.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    html: Annotated[
        str,
        REPORT(
            "Write the results as an HTML page with charts to this file.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    progress: Annotated[
        str,
        REPORT(
            "Show a live progress line: on, off, or auto (only on a terminal).",
            parse=one_of("auto", "on", "off"),
            metavar="WHEN",
            is_extension=True,
        ),
    ] = "auto"

    asynchronous: Annotated[
        bool,
        COMPATIBLE(
            "No effect: requests are always asynchronous.", aliases=("async", "a"), is_switch=True
        ),
    ] = False
    sync: Annotated[
        bool, COMPATIBLE("No effect: requests are always asynchronous.", is_switch=True)
    ] = False
    max_threads: Annotated[
        int, COMPATIBLE("No effect: the load uses no threads. See --processes.")
    ] = 0
    num_concurrent_requests: Annotated[
        int, COMPATIBLE("Same as --concurrency-range.", aliases=("t",))
    ] = 0
    max_concurrency: Annotated[
        int, COMPATIBLE("End of --concurrency-range, with -d.", aliases=("c",))
    ] = 0
    dynamic: Annotated[
        bool, COMPATIBLE("Increase the concurrency from -t to -c.", aliases=("d",), is_switch=True)
    ] = False
    zero_input: Annotated[
        bool, COMPATIBLE("Same as --input-data zero.", aliases=("z",), is_switch=True)
    ] = False
    data_directory: Annotated[str, COMPATIBLE("Same as --input-data FOLDER.", metavar="DIR")] = ""

    @property
    def is_grpc(self) -> bool:
        return self.protocol == "grpc" and self.service_kind == "triton"

    @property
    def is_llm(self) -> bool:
        """True if --llm is set, or if an option is set that only applies to language models."""
        if self.service_kind == "openai":
            return not self.endpoint.rstrip("/").endswith("embeddings")
        return bool(
            self.llm
            or self.synthetic_input_tokens_mean
            or self.input_file
            or self.goodput
            or self.output_tokens_mean
        )


def check_options(options: PerfOptions) -> PerfOptions:
    """Checks the options that do not depend on the server, and replaces old options by new ones.

    Raises OptionError.
    """
    options = _translated(options)
    modes = (
        "concurrency_range",
        "request_rate_range",
        "request_intervals",
        "periodic_concurrency_range",
        "replay",
    )
    used = [name for name in modes if getattr(options, name)]
    if len(used) > 1:
        raise OptionError(f"--{_dashed(used[0])} and --{_dashed(used[1])} cannot be used together")
    if not options.model and not (
        options.compare and all(_is_file(text) for text in options.compare)
    ):
        raise OptionError("-m is required: the name of the model to measure")
    if options.percentile != -1 and not 1 <= options.percentile <= 99:
        raise OptionError(f"--percentile must be from 1 to 99, or -1, got {options.percentile}")
    if options.periodic_concurrency_range is not None and not options.profile_export_file:
        raise OptionError(
            "--periodic-concurrency-range requires --profile-export-file, which receives the"
            " responses"
        )
    if options.collect_metrics and options.latency_report_file and not options.verbose_csv:
        raise OptionError("--collect-metrics with -f requires --verbose-csv")
    _check_search(options)
    for name, _ in options.goodput:
        if name not in GOODPUT_METRICS:
            raise OptionError(
                f"--goodput: unknown metric '{name}', expected one of {', '.join(GOODPUT_METRICS)}"
            )
    return options


def _check_search(options: PerfOptions) -> None:
    levels = options.concurrency_range or options.request_rate_range
    if levels is not None and levels.has_end and levels.end == 0 and not options.latency_threshold:
        raise OptionError("a range with end 0 requires --latency-threshold")
    if options.binary_search:
        if levels is None or not levels.has_end or levels.end == 0:
            raise OptionError(
                "--binary-search requires --concurrency-range or --request-rate-range with a start"
                " and an end"
            )
        if not options.latency_threshold:
            raise OptionError("--binary-search requires --latency-threshold")


def _translated(options: PerfOptions) -> PerfOptions:
    changes: dict[str, Any] = {}
    if options.num_concurrent_requests and options.concurrency_range is None:
        start = options.num_concurrent_requests
        end = options.max_concurrency if options.dynamic else start
        changes["concurrency_range"] = Range(start, end, 1, options.dynamic)
    if options.zero_input:
        changes["input_data"] = ("zero",)
    if options.data_directory:
        changes["input_data"] = (options.data_directory,)
    return msgspec.structs.replace(options, **changes) if changes else options


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _is_file(text: str) -> bool:
    return text.endswith(".json")
