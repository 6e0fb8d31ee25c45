"""Declares the options of `naiad analyze`.

The flags are model-analyzer's; its YAML file has the same names with underscores. Settings of one
model (objectives, constraints, sweeps) are a AnalyzedModel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from naiad.analyze.goal import constraints_of, objectives_of
from naiad.analyze.metric import Constraints, Objectives
from naiad.llm.engine_settings import ROUNDED
from naiad.perf.measure.ranges import one_of
from naiad.settings.option import Group
from naiad.settings.value import at_least, between, integer, real

MODELS = Group("Models")
SEARCH = Group("Search")
GOAL = Group("Goal")
SERVER = Group("Server")
MEASUREMENT = Group("Measurement")
OUTPUT = Group("Output")

positive = at_least(1, integer)


def names(text: str) -> list[str]:
    """Parses a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[int]:
    """Parses numbers such as 1,2,4 or 1-8 or 1:8:2."""
    values: list[int] = []
    for part in names(text):
        if ":" in part:
            pieces = [int(piece) for piece in part.split(":")]
            values += range(pieces[0], pieces[1] + 1, pieces[2] if len(pieces) > 2 else 1)
        elif "-" in part:
            start, end = part.split("-")
            values += range(int(start), int(end) + 1)
        else:
            values.append(int(part))
    if not values or min(values) < 0:
        raise ValueError(f"expected numbers such as 1,2,4 or 1:8:1, got '{text}'")
    return values


def some_of(*known: str) -> Callable[[str], list[str]]:
    """Parses a comma-separated list of known values and keeps the order of `known`."""

    def parse(text: str) -> list[str]:
        given = names(text)
        unknown = [value for value in given if value not in known]
        if unknown or not given:
            raise ValueError(f"expected a list of {', '.join(known)}, got '{text}'")
        return [value for value in known if value in given]

    return parse


def json_object(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got '{text}'")
    return value


def parse_objectives(text: str) -> Objectives:
    entries = [part.partition(":") for part in names(text)]
    return objectives_of({name: weight or 1 for name, _, weight in entries})


def parse_constraints(text: str) -> Constraints:
    limits: dict[str, dict[str, str]] = {}
    for part in names(text):
        name, *rest = part.split(":")
        if len(rest) != 2:
            raise ValueError(f"expected metric:min|max:value, got '{part}'")
        limits.setdefault(name, {})[rest[0]] = rest[1]
    return constraints_of(limits)


class AnalyzedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of profile_models."""

    name: str
    objectives: Objectives = {}
    constraints: Constraints = {}
    weighting: float = 1.0
    batch_sizes: list[int] = []
    concurrency: list[int] = []
    request_rate: list[float] = []
    model_config_parameters: dict[str, Any] = {}
    """Values to try, in the structure of the model configuration."""
    perf_analyzer_flags: dict[str, Any] = {}
    is_cpu_only: bool = False


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True):
    config_file: Annotated[
        str,
        MODELS(
            "YAML or JSON file with these options and with settings of single models.",
            aliases=("f",),
            metavar="FILE",
        ),
    ] = ""
    model_repository: Annotated[
        str,
        MODELS(
            "Directory of the models. It is only read, unless --write-best-config is set.",
            aliases=("m",),
            metavar="DIR",
        ),
    ] = ""
    profile_models: Annotated[
        list[str],
        MODELS("Models to measure, separated by commas.", parse=names, metavar="MODELS"),
    ] = []
    bls_composing_models: Annotated[
        list[str],
        MODELS(
            "Models that a BLS model calls. They are searched together with it.",
            parse=names,
            metavar="MODELS",
        ),
    ] = []
    cpu_only_composing_models: Annotated[
        list[str],
        MODELS("Composing models that run on the CPU only.", parse=names, metavar="MODELS"),
    ] = []
    model_type: Annotated[
        str,
        MODELS(
            "Type of the models: generic or llm.", parse=one_of("generic", "llm"), metavar="TYPE"
        ),
    ] = "generic"

    run_config_search_mode: Annotated[
        str,
        SEARCH(
            "Search algorithm: quick, brute or optuna.",
            parse=one_of("quick", "brute", "optuna"),
            metavar="MODE",
        ),
    ] = "quick"
    run_config_search_min_model_batch_size: Annotated[
        int, SEARCH("Smallest max_batch_size to try.", parse=positive)
    ] = 1
    run_config_search_max_model_batch_size: Annotated[
        int, SEARCH("Largest max_batch_size to try.", parse=positive)
    ] = 128
    run_config_search_min_instance_count: Annotated[
        int, SEARCH("Smallest instance count to try.", parse=positive)
    ] = 1
    run_config_search_max_instance_count: Annotated[
        int, SEARCH("Largest instance count to try.", parse=positive)
    ] = 5
    run_config_search_min_concurrency: Annotated[
        int, SEARCH("Lowest concurrency to try.", parse=positive)
    ] = 1
    run_config_search_max_concurrency: Annotated[
        int, SEARCH("Highest concurrency to try.", parse=positive)
    ] = 1024
    run_config_search_max_queue_delay: Annotated[
        list[int],
        SEARCH(
            "Values of max_queue_delay_microseconds to try.",
            parse=numbers,
            metavar="US",
            is_extension=True,
        ),
    ] = []
    run_config_search_max_num_seqs: Annotated[
        list[int],
        SEARCH(
            "LLM: values of max_num_seqs to try.",
            parse=numbers,
            default_text="16,32,64,128,256",
            is_extension=True,
        ),
    ] = []
    run_config_search_max_num_batched_tokens: Annotated[
        list[int],
        SEARCH(
            "LLM: values of max_num_batched_tokens to try.",
            parse=numbers,
            default_text="512,1024,2048,4096,8192",
            is_extension=True,
        ),
    ] = []
    run_config_search_quantization: Annotated[
        list[str],
        SEARCH(
            "LLM: values of quantization to try: auto, fp8, int8, int4. Divergence from the "
            "unquantized model is measured as well.",
            parse=some_of("auto", *ROUNDED),
            metavar="LIST",
            is_extension=True,
        ),
    ] = []
    run_config_search_kv_cache_dtype: Annotated[
        list[str],
        SEARCH(
            "LLM: values of kv_cache_dtype to try: auto, fp8.",
            parse=some_of("auto", "fp8"),
            metavar="LIST",
            is_extension=True,
        ),
    ] = []
    divergence_text: Annotated[
        str,
        SEARCH(
            "LLM: text file on which divergence is measured.",
            metavar="FILE",
            default_text="a text that comes with Naiad",
            is_extension=True,
        ),
    ] = ""
    run_config_search_disable: Annotated[
        bool, SEARCH("Measure only the default configurations.", is_switch=True)
    ] = False
    run_config_profile_models_concurrently_enable: Annotated[
        bool, SEARCH("Measure all models together, at the same time.", is_switch=True)
    ] = False
    concurrency: Annotated[
        list[int],
        SEARCH("Concurrencies to measure.", aliases=("c",), parse=numbers, metavar="LIST"),
    ] = []
    batch_sizes: Annotated[
        list[int],
        SEARCH(
            "Batch sizes of requests to measure.",
            aliases=("b",),
            parse=numbers,
            metavar="LIST",
            default_text="1",
        ),
    ] = []
    concurrency_sweep_disable: Annotated[
        bool,
        SEARCH("Do not try other concurrencies for the best configurations.", is_switch=True),
    ] = False
    early_exit_enable: Annotated[
        bool,
        SEARCH(
            "Brute: do not try higher concurrencies once the throughput stops increasing.",
            is_switch=True,
        ),
    ] = False
    min_percentage_of_search_space: Annotated[
        float,
        SEARCH(
            "Optuna: minimum number of trials, as a percentage of the search space.",
            parse=between(0, 100, real),
            metavar="PERCENT",
        ),
    ] = 5.0
    max_percentage_of_search_space: Annotated[
        float,
        SEARCH(
            "Optuna: maximum number of trials, as a percentage of the search space.",
            parse=between(0, 100, real),
            metavar="PERCENT",
        ),
    ] = 20.0
    optuna_min_trials: Annotated[
        int,
        SEARCH(
            "Optuna: minimum number of trials. 0 means that the percentage applies.",
            parse=at_least(0, integer),
        ),
    ] = 0
    optuna_max_trials: Annotated[
        int,
        SEARCH(
            "Optuna: maximum number of trials. 0 means that the percentage applies.",
            parse=at_least(0, integer),
        ),
    ] = 0
    optuna_early_exit_threshold: Annotated[
        int,
        SEARCH("Optuna: stop after this many trials without an improvement.", parse=positive),
    ] = 10
    seed: Annotated[int, SEARCH("Optuna: seed of the random choices.", is_extension=True)] = 0

    objectives: Annotated[
        Objectives,
        GOAL(
            "Metrics to optimize and their weights, as metric:weight,...",
            parse=parse_objectives,
            default_text="perf_throughput:1",
        ),
    ] = {}
    constraints: Annotated[
        Constraints,
        GOAL(
            "Limits of metrics, e.g. perf_latency_p99:max:50,gpu_used_memory:max:8000.",
            parse=parse_constraints,
        ),
    ] = {}
    latency_budget: Annotated[
        float,
        GOAL(
            "Maximum p99 latency: short for --constraints perf_latency_p99:max:MS.",
            parse=at_least(0, real),
            metavar="MS",
        ),
    ] = 0.0
    min_throughput: Annotated[
        float,
        GOAL(
            "Minimum throughput: short for --constraints perf_throughput:min:N.",
            parse=at_least(0, real),
            metavar="N",
        ),
    ] = 0.0

    triton_launch_mode: Annotated[
        str,
        SERVER(
            "local: start a server. remote: use a running server, which must run with "
            "--model-control-mode=explicit.",
            metavar="MODE",
        ),
    ] = "local"
    triton_server_path: Annotated[
        str,
        SERVER("Local: executable of the server to start.", metavar="PATH", default_text="Naiad"),
    ] = ""
    triton_server_flags: Annotated[
        dict[str, Any],
        SERVER("Local: flags of the server, as a JSON object.", parse=json_object),
    ] = {}
    triton_http_endpoint: Annotated[
        str, SERVER("Remote: HTTP address of the server.", metavar="HOST:PORT")
    ] = "localhost:8000"
    triton_grpc_endpoint: Annotated[
        str, SERVER("Remote: gRPC address of the server.", metavar="HOST:PORT")
    ] = "localhost:8001"
    triton_metrics_url: Annotated[
        str, SERVER("Remote: URL of the server's metrics.", metavar="URL")
    ] = "http://localhost:8002/metrics"
    triton_output_path: Annotated[
        str, SERVER("Local: write the server's log to this file.", metavar="FILE")
    ] = ""
    client_protocol: Annotated[
        str,
        SERVER(
            "Protocol of the requests: http or grpc.",
            parse=one_of("http", "grpc"),
            metavar="PROTOCOL",
        ),
    ] = "grpc"

    measurement_interval: Annotated[
        int,
        MEASUREMENT(
            "Length of a measurement window.", parse=positive, metavar="MS", is_extension=True
        ),
    ] = 2000
    stability_percentage: Annotated[
        float,
        MEASUREMENT(
            "Maximum difference between windows of a stable measurement, in percent.",
            parse=at_least(0, real),
            is_extension=True,
        ),
    ] = 10.0
    max_trials: Annotated[
        int,
        MEASUREMENT(
            "Maximum number of windows of one measurement.", parse=positive, is_extension=True
        ),
    ] = 6
    comparison_rounds: Annotated[
        int,
        MEASUREMENT(
            "Number of rounds in which the best configurations and the default are measured in "
            "turns at equal load, to measure the gain.",
            parse=at_least(3, integer),
            is_extension=True,
        ),
    ] = 5
    perf_analyzer_flags: Annotated[
        dict[str, Any],
        MEASUREMENT("Further flags of `naiad perf`, as a JSON object.", parse=json_object),
    ] = {}

    checkpoint_directory: Annotated[
        str,
        OUTPUT(
            "Directory where measurements are stored. A later run with the same directory resumes.",
            aliases=("s",),
            metavar="DIR",
        ),
    ] = "checkpoints"
    export_path: Annotated[
        str,
        OUTPUT(
            "Directory for the reports.",
            aliases=("e",),
            metavar="DIR",
            default_text="the current directory",
        ),
    ] = "."
    output_model_repository_path: Annotated[
        str,
        OUTPUT(
            "Write the best configurations as models to this repository.",
            metavar="DIR",
            default_text="EXPORT_PATH/output_model_repository",
        ),
    ] = ""
    override_output_model_repository: Annotated[
        bool, OUTPUT("Overwrite models of that repository if it is not empty.", is_switch=True)
    ] = False
    write_best_config: Annotated[
        bool,
        OUTPUT(
            "Write the best configuration to the model's config.pbtxt, if it is better than the "
            "default. The old file is kept next to it.",
            is_switch=True,
            is_extension=True,
        ),
    ] = False
    num_configs_per_model: Annotated[
        int, OUTPUT("Number of best configurations to report for each model.", parse=positive)
    ] = 3
    skip_summary_reports: Annotated[bool, OUTPUT("Do not write reports.", is_switch=True)] = False
    skip_detailed_reports: Annotated[
        bool, OUTPUT("Leave the details of configurations out of the reports.", is_switch=True)
    ] = False
    progress: Annotated[
        str,
        OUTPUT(
            "Show a live progress line: on, off, or auto (only on a terminal).",
            parse=one_of("auto", "on", "off"),
            metavar="WHEN",
            is_extension=True,
        ),
    ] = "auto"


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_directory: Annotated[
        str, OUTPUT("Directory of the stored measurements.", aliases=("s",), metavar="DIR")
    ] = "checkpoints"
    export_path: Annotated[
        str,
        OUTPUT(
            "Directory for the reports.",
            aliases=("e",),
            metavar="DIR",
            default_text="the current directory",
        ),
    ] = "."
    report_model_configs: Annotated[
        list[str],
        OUTPUT("Configurations to report in detail.", aliases=("n",), parse=names, metavar="NAMES"),
    ] = []
    num_configs_per_model: Annotated[
        int, OUTPUT("Number of best configurations to report for each model.", parse=positive)
    ] = 3
    output_formats: Annotated[
        list[str],
        OUTPUT(
            "Formats of the reports: html, csv, json.",
            aliases=("o",),
            parse=names,
            metavar="FORMATS",
            default_text="all",
        ),
    ] = []
