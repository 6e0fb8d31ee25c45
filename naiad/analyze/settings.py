"""The options of `naiad analyze`, declared once: flags are model-analyzer's, and its YAML has the
same names with underscores.

Out: ProfileOptions. What belongs to one model (objectives, constraints, sweeps) is a ModelSpec.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from naiad.analyze.goal import constraints_of, objectives_of
from naiad.analyze.metric import Constraints, Objectives
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


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int]:
    """1,2,4 or 1-8 or 1:8:2."""
    found: list[int] = []
    for part in words(text):
        if ":" in part:
            pieces = [int(piece) for piece in part.split(":")]
            found += range(pieces[0], pieces[1] + 1, pieces[2] if len(pieces) > 2 else 1)
        elif "-" in part:
            start, end = part.split("-")
            found += range(int(start), int(end) + 1)
        else:
            found.append(int(part))
    if not found or min(found) < 0:
        raise ValueError(f"expected numbers such as 1,2,4 or 1:8:1, got '{text}'")
    return found


def json_object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got '{text}'")
    return found


def parse_objectives(text: str) -> Objectives:
    entries = [word.partition(":") for word in words(text)]
    return objectives_of({name: weight or 1 for name, _, weight in entries})


def parse_constraints(text: str) -> Constraints:
    found: dict[str, dict[str, str]] = {}
    for word in words(text):
        name, *rest = word.split(":")
        if len(rest) != 2:
            raise ValueError(f"expected metric:min|max:value, got '{word}'")
        found.setdefault(name, {})[rest[0]] = rest[1]
    return constraints_of(found)


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of profile_models."""

    name: str
    objectives: Objectives = {}
    constraints: Constraints = {}
    weighting: float = 1.0
    batch_sizes: list[int] = []
    concurrency: list[int] = []
    request_rate: list[float] = []
    model_config_parameters: dict[str, Any] = {}
    """Lists of values to try, in the shape of the configuration."""
    perf_analyzer_flags: dict[str, Any] = {}
    is_cpu_only: bool = False


class ProfileOptions(msgspec.Struct, frozen=True, kw_only=True):
    config_file: Annotated[
        str,
        MODELS("YAML or JSON file with these options and more.", aliases=("f",), metavar="FILE"),
    ] = ""
    model_repository: Annotated[
        str,
        MODELS("Where the models are; nothing is changed there.", aliases=("m",), metavar="DIR"),
    ] = ""
    profile_models: Annotated[
        list[str], MODELS("Models to measure, a,b.", parse=words, metavar="MODELS")
    ] = []
    bls_composing_models: Annotated[
        list[str],
        MODELS(
            "Models that a BLS model calls; they are searched with it.",
            parse=words,
            metavar="MODELS",
        ),
    ] = []
    cpu_only_composing_models: Annotated[
        list[str], MODELS("Of these, those without GPU.", parse=words, metavar="MODELS")
    ] = []
    model_type: Annotated[
        str, MODELS("generic or llm.", parse=one_of("generic", "llm"), metavar="TYPE")
    ] = "generic"

    run_config_search_mode: Annotated[
        str,
        SEARCH("quick, brute or optuna.", parse=one_of("quick", "brute", "optuna"), metavar="MODE"),
    ] = "quick"
    run_config_search_min_model_batch_size: Annotated[
        int, SEARCH("Smallest max_batch_size.", parse=positive)
    ] = 1
    run_config_search_max_model_batch_size: Annotated[
        int, SEARCH("Largest max_batch_size.", parse=positive)
    ] = 128
    run_config_search_min_instance_count: Annotated[
        int, SEARCH("Fewest instances.", parse=positive)
    ] = 1
    run_config_search_max_instance_count: Annotated[
        int, SEARCH("Most instances.", parse=positive)
    ] = 5
    run_config_search_min_concurrency: Annotated[
        int, SEARCH("Lowest concurrency.", parse=positive)
    ] = 1
    run_config_search_max_concurrency: Annotated[
        int, SEARCH("Highest concurrency.", parse=positive)
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
            "LLM: sequences at once.",
            parse=numbers,
            default_text="16,32,64,128,256",
            is_extension=True,
        ),
    ] = []
    run_config_search_max_num_batched_tokens: Annotated[
        list[int],
        SEARCH(
            "LLM: tokens of a step.",
            parse=numbers,
            default_text="512,1024,2048,4096,8192",
            is_extension=True,
        ),
    ] = []
    run_config_search_disable: Annotated[
        bool, SEARCH("Measure the models as they are.", is_switch=True)
    ] = False
    run_config_profile_models_concurrently_enable: Annotated[
        bool, SEARCH("Several models under load at the same time.", is_switch=True)
    ] = False
    concurrency: Annotated[
        list[int],
        SEARCH("Concurrencies to measure.", aliases=("c",), parse=numbers, metavar="LIST"),
    ] = []
    batch_sizes: Annotated[
        list[int],
        SEARCH(
            "Batch sizes of requests.",
            aliases=("b",),
            parse=numbers,
            metavar="LIST",
            default_text="1",
        ),
    ] = []
    concurrency_sweep_disable: Annotated[
        bool, SEARCH("No concurrencies around the best ones found.", is_switch=True)
    ] = False
    early_exit_enable: Annotated[
        bool, SEARCH("Brute: no higher concurrency once throughput stays the same.", is_switch=True)
    ] = False
    min_percentage_of_search_space: Annotated[
        float, SEARCH("Optuna: fewest trials.", parse=between(0, 100, real), metavar="PERCENT")
    ] = 5.0
    max_percentage_of_search_space: Annotated[
        float, SEARCH("Optuna: most trials.", parse=between(0, 100, real), metavar="PERCENT")
    ] = 20.0
    optuna_min_trials: Annotated[
        int,
        SEARCH("Optuna: fewest trials; goes before the percentage.", parse=at_least(0, integer)),
    ] = 0
    optuna_max_trials: Annotated[
        int, SEARCH("Optuna: most trials.", parse=at_least(0, integer))
    ] = 0
    optuna_early_exit_threshold: Annotated[
        int, SEARCH("Optuna: stop after so many trials without a better one.", parse=positive)
    ] = 10
    seed: Annotated[int, SEARCH("Of the random choices.", is_extension=True)] = 0

    objectives: Annotated[
        Objectives,
        GOAL(
            "What is best, metric:weight,...",
            parse=parse_objectives,
            default_text="perf_throughput:1",
        ),
    ] = {}
    constraints: Annotated[
        Constraints,
        GOAL(
            "Limits, e.g. perf_latency_p99:max:50,gpu_used_memory:max:8000.",
            parse=parse_constraints,
        ),
    ] = {}
    latency_budget: Annotated[
        float, GOAL("Same as perf_latency_p99:max:MS.", parse=at_least(0, real), metavar="MS")
    ] = 0.0
    min_throughput: Annotated[
        float, GOAL("Same as perf_throughput:min:N.", parse=at_least(0, real), metavar="N")
    ] = 0.0

    triton_launch_mode: Annotated[
        str,
        SERVER(
            "local: start a server; remote: use one that runs with --model-control-mode=explicit.",
            metavar="MODE",
        ),
    ] = "local"
    triton_server_path: Annotated[
        str, SERVER("Server to start; this Naiad when not given.", metavar="PATH")
    ] = ""
    triton_server_flags: Annotated[
        dict[str, Any], SERVER("Flags for it, as JSON.", parse=json_object)
    ] = {}
    triton_http_endpoint: Annotated[str, SERVER("Where it listens.", metavar="HOST:PORT")] = (
        "localhost:8000"
    )
    triton_grpc_endpoint: Annotated[str, SERVER("Where it listens.", metavar="HOST:PORT")] = (
        "localhost:8001"
    )
    triton_metrics_url: Annotated[str, SERVER("Its metrics.", metavar="URL")] = (
        "http://localhost:8002/metrics"
    )
    triton_output_path: Annotated[str, SERVER("The server's log.", metavar="FILE")] = ""
    client_protocol: Annotated[
        str, SERVER("http or grpc.", parse=one_of("http", "grpc"), metavar="PROTOCOL")
    ] = "grpc"

    measurement_interval: Annotated[
        int,
        MEASUREMENT("Length of a window in ms.", parse=positive, metavar="MS", is_extension=True),
    ] = 2000
    stability_percentage: Annotated[
        float,
        MEASUREMENT("How far windows may differ.", parse=at_least(0, real), is_extension=True),
    ] = 10.0
    max_trials: Annotated[
        int, MEASUREMENT("Windows for one measurement.", parse=positive, is_extension=True)
    ] = 6
    perf_analyzer_flags: Annotated[
        dict[str, Any], MEASUREMENT("More flags of naiad perf, as JSON.", parse=json_object)
    ] = {}

    checkpoint_directory: Annotated[
        str,
        OUTPUT("Measurements are kept here; a second run goes on.", aliases=("s",), metavar="DIR"),
    ] = "checkpoints"
    export_path: Annotated[str, OUTPUT("Reports.", aliases=("e",), metavar="DIR")] = "."
    output_model_repository_path: Annotated[
        str,
        OUTPUT(
            "The best configurations as models.",
            metavar="DIR",
            default_text="EXPORT_PATH/output_model_repository",
        ),
    ] = ""
    override_output_model_repository: Annotated[
        bool, OUTPUT("It may exist already.", is_switch=True)
    ] = False
    write_best_config: Annotated[
        bool,
        OUTPUT(
            "Write the winner into the model's own config.pbtxt; the old one is kept beside it.",
            is_switch=True,
            is_extension=True,
        ),
    ] = False
    num_configs_per_model: Annotated[
        int, OUTPUT("Best configurations to show.", parse=positive)
    ] = 3
    skip_summary_reports: Annotated[bool, OUTPUT("No summary.", is_switch=True)] = False
    skip_detailed_reports: Annotated[bool, OUTPUT("No details.", is_switch=True)] = False
    progress: Annotated[
        str,
        OUTPUT(
            "auto, on or off.", parse=one_of("auto", "on", "off"), metavar="WHEN", is_extension=True
        ),
    ] = "auto"


class ReportOptions(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint_directory: Annotated[
        str, OUTPUT("Where the measurements are.", aliases=("s",), metavar="DIR")
    ] = "checkpoints"
    export_path: Annotated[str, OUTPUT("Where reports go.", aliases=("e",), metavar="DIR")] = "."
    report_model_configs: Annotated[
        list[str],
        OUTPUT(
            "Configurations for the detailed report.", aliases=("n",), parse=words, metavar="NAMES"
        ),
    ] = []
    num_configs_per_model: Annotated[
        int, OUTPUT("Best configurations to show.", parse=positive)
    ] = 3
    output_formats: Annotated[
        list[str],
        OUTPUT(
            "html, csv, json.", aliases=("o",), parse=words, metavar="FORMATS", default_text="all"
        ),
    ] = []
