"""The options of `naiad perf`, declared once: names and meanings are perf_analyzer's wherever it
has them.

Out: PerfOptions; the command line and docs/perf.md derive from it. Rule: what depends on the server
     is checked later, in prepare.py.
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
        str, MODEL("Its version; the server's choice when not given.", aliases=("x",), metavar="N")
    ] = ""
    service_kind: Annotated[
        str,
        MODEL(
            "What kind of server it is: triton or openai.",
            parse=one_of("triton", "openai"),
            metavar="KIND",
        ),
    ] = "triton"
    endpoint: Annotated[
        str,
        MODEL(
            "Path of an OpenAI-style server: v1/chat/completions, v1/completions or v1/embeddings.",
            metavar="PATH",
        ),
    ] = "v1/chat/completions"
    bls_composing_models: Annotated[
        list[tuple[str, str]],
        MODEL(
            "Models that a BLS model calls, a,b:2; their statistics are shown too.",
            parse=composing_models,
            metavar="MODELS",
        ),
    ] = []
    verbose: Annotated[bool, MODEL("Show each window.", aliases=("v",), is_switch=True)] = False

    concurrency_range: Annotated[
        Range | None,
        LOAD(
            "So many requests at once: start:end:step. End 0: until --latency-threshold is met.",
            parse=whole_range,
            metavar="RANGE",
        ),
    ] = None
    request_rate_range: Annotated[
        Range | None,
        LOAD("So many requests per second: start:end:step.", parse=number_range, metavar="RANGE"),
    ] = None
    request_distribution: Annotated[
        str,
        LOAD(
            "Between requests of a rate: constant or poisson.",
            parse=one_of("constant", "poisson"),
            metavar="KIND",
        ),
    ] = "constant"
    request_intervals: Annotated[
        str, LOAD("File with microseconds between requests, one number a line.", metavar="FILE")
    ] = ""
    periodic_concurrency_range: Annotated[
        Range | None,
        LOAD(
            "A growing burst: start, end in all, step; needs --profile-export-file.",
            parse=whole_range,
            metavar="RANGE",
        ),
    ] = None
    request_period: Annotated[int, LOAD("Responses before a burst grows.", parse=positive)] = 10
    replay: Annotated[
        str,
        LOAD(
            "Trace to replay: JSON lines with 'timestamp' in ms and a prompt or its length.",
            metavar="FILE",
            is_extension=True,
        ),
    ] = ""
    replay_speed: Annotated[
        float,
        LOAD(
            "2 replays a trace in half the time.", parse=at_least(0.0001, real), is_extension=True
        ),
    ] = 1.0
    binary_search: Annotated[
        bool,
        LOAD("Search the range for the last level within --latency-threshold.", is_switch=True),
    ] = False
    latency_threshold: Annotated[
        float,
        LOAD(
            "Stop at the first level above so many ms.",
            aliases=("l",),
            parse=at_least(0, real),
            metavar="MS",
        ),
    ] = 0.0
    num_of_sequences: Annotated[
        int, LOAD("Sequences at once, for rates on sequence models.", parse=positive)
    ] = 4
    serial_sequences: Annotated[
        bool, LOAD("At most one request of a sequence at a time.", is_switch=True)
    ] = False
    processes: Annotated[
        int, LOAD("Processes that make the load together.", parse=positive, is_extension=True)
    ] = 1

    measurement_mode: Annotated[
        str,
        MEASUREMENT(
            "time_windows or count_windows.",
            parse=one_of("time_windows", "count_windows"),
            metavar="MODE",
        ),
    ] = "time_windows"
    measurement_interval: Annotated[
        int, MEASUREMENT("Length of a window in ms.", aliases=("p",), parse=positive, metavar="MS")
    ] = 5000
    measurement_request_count: Annotated[
        int, MEASUREMENT("Requests in a window of count_windows.", parse=positive)
    ] = 50
    request_count: Annotated[
        int, MEASUREMENT("Send exactly so many requests, one window.", parse=at_least(0, integer))
    ] = 0
    warmup_request_count: Annotated[
        int, MEASUREMENT("Requests before anything is measured.", parse=at_least(0, integer))
    ] = 0
    stability_percentage: Annotated[
        float,
        MEASUREMENT(
            "How far the last three windows may differ.",
            aliases=("s",),
            parse=at_least(0, real),
            metavar="PERCENT",
        ),
    ] = 10.0
    max_trials: Annotated[
        int, MEASUREMENT("Windows to wait for three that agree.", aliases=("r",), parse=positive)
    ] = 10
    percentile: Annotated[
        int, MEASUREMENT("Judge by this percentile of latency; -1 for the average.", metavar="N")
    ] = -1

    batch_size: Annotated[
        int, DATA("Batch size of each request.", aliases=("b",), parse=positive)
    ] = 1
    input_data: Annotated[
        tuple[str, ...],
        DATA(
            "zero, random, a JSON file (may be repeated) or a folder.",
            metavar="WHAT",
            default_text="random",
        ),
    ] = ()
    shape: Annotated[
        tuple[Any, ...],
        DATA(
            "Shape of an input with dynamic dimensions, name:1,2,3.",
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
            "Parameter of each request, name:value:type.",
            parse=request_parameter,
            metavar="PARAMETER",
        ),
    ] = ()
    sequence_length: Annotated[
        int,
        DATA(
            "Requests in a sequence.",
            parse=positive,
            default_text="20, or as many as the data has",
        ),
    ] = 0
    sequence_length_variation: Annotated[
        float,
        DATA("By how much sequence lengths vary.", parse=at_least(0, real), metavar="PERCENT"),
    ] = 20.0
    sequence_id_range: Annotated[
        IdRange,
        DATA(
            "Ids for sequences, start:end.",
            parse=id_range,
            metavar="RANGE",
            default_text="1, without end",
        ),
    ] = IdRange(1)
    input_tensor_format: Annotated[
        str,
        DATA("Of HTTP requests: binary or json.", parse=one_of("binary", "json"), metavar="FORMAT"),
    ] = "binary"
    output_tensor_format: Annotated[
        str,
        DATA("Of HTTP answers: binary or json.", parse=one_of("binary", "json"), metavar="FORMAT"),
    ] = "binary"
    shared_memory: Annotated[
        str,
        DATA(
            "Tensors in shared memory: none, system or cuda.",
            parse=one_of("none", "system", "cuda"),
            metavar="KIND",
        ),
    ] = "none"
    output_shared_memory_size: Annotated[
        int, DATA("Bytes for each output of unknown size.", parse=positive)
    ] = 102400

    llm: Annotated[
        bool,
        LLM(
            "Measure tokens: first token, time between tokens, rates.",
            is_switch=True,
            is_extension=True,
        ),
    ] = False
    synthetic_input_tokens_mean: Annotated[
        int,
        LLM(
            "Tokens of a synthetic prompt.",
            aliases=("isl",),
            parse=positive,
            metavar="N",
            default_text="550",
        ),
    ] = 0
    synthetic_input_tokens_stddev: Annotated[
        float, LLM("Their spread.", parse=at_least(0, real), metavar="N")
    ] = 0.0
    output_tokens_mean: Annotated[
        int,
        LLM(
            "Tokens to generate; the model decides when not given.",
            aliases=("osl",),
            parse=positive,
            metavar="N",
        ),
    ] = 0
    output_tokens_stddev: Annotated[
        float, LLM("Their spread.", parse=at_least(0, real), metavar="N")
    ] = 0.0
    num_prompts: Annotated[int, LLM("Different synthetic prompts.", parse=positive)] = 100
    shared_prefix_tokens: Annotated[
        int,
        LLM(
            "Tokens that all prompts begin with, for prefix caches.",
            parse=at_least(0, integer),
            is_extension=True,
        ),
    ] = 0
    input_file: Annotated[
        str,
        LLM(
            "Prompts: a text file with one a line, or JSON lines with 'text' or 'prompt'.",
            metavar="FILE",
        ),
    ] = ""
    tokenizer: Annotated[
        str, LLM("tokenizer.json, or a folder with one: counts tokens exactly.", metavar="PATH")
    ] = ""
    goodput: Annotated[
        tuple[Any, ...],
        LLM(
            f"Limit that a good request keeps, metric:value; metrics: {', '.join(GOODPUT_METRICS)}.",
            parse=goodput_limit,
            metavar="LIMIT",
        ),
    ] = ()
    extra_inputs: Annotated[
        tuple[str, ...], LLM("Field of each OpenAI request, name:value.", metavar="FIELD")
    ] = ()

    url: Annotated[
        str,
        SERVER(
            "Where the server is.",
            aliases=("u",),
            metavar="HOST:PORT",
            default_text="localhost:8000, or :8001 for gRPC",
        ),
    ] = ""
    protocol: Annotated[
        str,
        SERVER("http or grpc.", aliases=("i",), parse=one_of("http", "grpc"), metavar="PROTOCOL"),
    ] = "http"
    header: Annotated[
        tuple[Any, ...],
        SERVER(
            "Header of each request, 'Name:Value'; metadata for gRPC.",
            aliases=("H",),
            parse=header,
            metavar="HEADER",
        ),
    ] = ()
    streaming: Annotated[
        bool,
        SERVER("gRPC's stream, HTTP's generate_stream, or an OpenAI event stream.", is_switch=True),
    ] = False
    grpc_compression_algorithm: Annotated[
        str,
        SERVER("none, gzip or deflate.", parse=one_of("none", "gzip", "deflate"), metavar="KIND"),
    ] = "none"
    ssl_grpc_use_ssl: Annotated[bool, SERVER("gRPC over TLS.", is_switch=True)] = False
    ssl_grpc_root_certifications_file: Annotated[
        str, SERVER("Certificates to trust, PEM.", metavar="FILE")
    ] = ""
    ssl_grpc_private_key_file: Annotated[str, SERVER("Our key, PEM.", metavar="FILE")] = ""
    ssl_grpc_certificate_chain_file: Annotated[
        str, SERVER("Our certificate, PEM.", metavar="FILE")
    ] = ""
    ssl_https_verify_peer: Annotated[int, SERVER("0: any certificate will do.")] = 1
    ssl_https_verify_host: Annotated[int, SERVER("0: a certificate for any name will do.")] = 2
    ssl_https_ca_certificates_file: Annotated[
        str, SERVER("Certificates to trust, PEM.", metavar="FILE")
    ] = ""
    ssl_https_client_certificate_file: Annotated[
        str, SERVER("Our certificate, PEM.", metavar="FILE")
    ] = ""
    ssl_https_private_key_file: Annotated[str, SERVER("Our key, PEM.", metavar="FILE")] = ""
    trace_level: Annotated[
        tuple[str, ...],
        SERVER("Trace the model meanwhile: OFF, TIMESTAMPS, TENSORS.", metavar="LEVEL"),
    ] = ()
    trace_rate: Annotated[int, SERVER("One of so many requests is traced.", parse=positive)] = 1000
    trace_count: Annotated[int, SERVER("So many are traced; -1 for no end.")] = -1
    log_frequency: Annotated[
        int, SERVER("Traces in one file; 0 for all.", parse=at_least(0, integer))
    ] = 0

    latency_report_file: Annotated[
        str, REPORT("Report as CSV.", aliases=("f",), metavar="FILE")
    ] = ""
    verbose_csv: Annotated[bool, REPORT("More columns in the CSV.", is_switch=True)] = False
    profile_export_file: Annotated[
        str, REPORT("Every request's times and tensors as JSON.", metavar="FILE")
    ] = ""
    collect_metrics: Annotated[
        bool, REPORT("Read GPU metrics during each window.", is_switch=True)
    ] = False
    metrics_url: Annotated[str, REPORT("Where they are.", metavar="URL")] = "localhost:8002/metrics"
    metrics_interval: Annotated[int, REPORT("How often, in ms.", parse=positive, metavar="MS")] = (
        1000
    )
    compare: Annotated[
        tuple[str, ...],
        REPORT(
            'Measure this too and show both: flags that differ, "triton=-u localhost:9000", or a file of --json. May be repeated.',
            metavar="WHAT",
            is_extension=True,
        ),
    ] = ()
    label: Annotated[str, REPORT("What to call this run in a comparison.", is_extension=True)] = ""
    json: Annotated[
        str,
        REPORT("Results as JSON, also for a later --compare.", metavar="FILE", is_extension=True),
    ] = ""
    html: Annotated[
        str, REPORT("Results as a page with charts, one file.", metavar="FILE", is_extension=True)
    ] = ""
    progress: Annotated[
        str,
        REPORT(
            "Live progress: auto, on or off.",
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
    sync: Annotated[bool, COMPATIBLE("No effect.", is_switch=True)] = False
    max_threads: Annotated[int, COMPATIBLE("No effect: there are no threads, see --processes.")] = 0
    num_concurrent_requests: Annotated[
        int, COMPATIBLE("Same as --concurrency-range.", aliases=("t",))
    ] = 0
    max_concurrency: Annotated[
        int, COMPATIBLE("End of --concurrency-range, with -d.", aliases=("c",))
    ] = 0
    dynamic: Annotated[
        bool, COMPATIBLE("Search upwards from -t.", aliases=("d",), is_switch=True)
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
        """Asked for, or implied by an option that only makes sense then."""
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
    """What can be said without asking the server; old spellings are translated."""
    options = _translated(options)
    modes = (
        "concurrency_range",
        "request_rate_range",
        "request_intervals",
        "periodic_concurrency_range",
        "replay",
    )
    given = [name for name in modes if getattr(options, name)]
    if len(given) > 1:
        raise OptionError(
            f"--{_dashed(given[0])} and --{_dashed(given[1])} cannot be used together"
        )
    if not options.model and not (
        options.compare and all(_is_file(text) for text in options.compare)
    ):
        raise OptionError("-m says which model to measure")
    if options.percentile != -1 and not 1 <= options.percentile <= 99:
        raise OptionError(f"--percentile must be from 1 to 99, or -1, got {options.percentile}")
    if options.periodic_concurrency_range is not None and not options.profile_export_file:
        raise OptionError(
            "--periodic-concurrency-range reports single responses: give --profile-export-file"
        )
    if options.collect_metrics and options.latency_report_file and not options.verbose_csv:
        raise OptionError("--collect-metrics adds columns to the CSV: give --verbose-csv too")
    _check_search(options)
    for name, _ in options.goodput:
        if name not in GOODPUT_METRICS:
            raise OptionError(
                f"--goodput does not know '{name}', it knows: {', '.join(GOODPUT_METRICS)}"
            )
    return options


def _check_search(options: PerfOptions) -> None:
    found = options.concurrency_range or options.request_rate_range
    if found is not None and found.has_end and found.end == 0 and not options.latency_threshold:
        raise OptionError(
            "a range that ends with 0 goes on until --latency-threshold is met: give that too"
        )
    if options.binary_search:
        if found is None or not found.has_end or found.end == 0:
            raise OptionError(
                "--binary-search needs a start and an end in --concurrency-range or --request-rate-range"
            )
        if not options.latency_threshold:
            raise OptionError("--binary-search needs --latency-threshold")


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
