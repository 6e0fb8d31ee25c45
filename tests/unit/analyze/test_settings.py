"""Tests how flags and files become options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from naiad.analyze.command import command
from naiad.analyze.metric import Limit
from naiad.analyze.profile import complete_options
from naiad.analyze.settings import AnalyzedModel, numbers
from naiad.settings.option import OptionError
from naiad.tools.options_command import OptionsCommand


def parse(line: str) -> dict[str, Any]:
    profile = command.commands["profile"]
    assert isinstance(profile, OptionsCommand)
    return profile.parse(line.split())


def repository(folder: Path, *models: str) -> Path:
    for model in models:
        (folder / "models" / model).mkdir(parents=True)
    return folder / "models"


def test_accepts_flags_of_model_analyzer(tmp_path: Path) -> None:
    options, specs = complete_options(
        parse(
            f"-m {repository(tmp_path, 'a', 'b')} --profile-models a,b "
            "--run-config-search-mode optuna --run-config-search-max-instance-count 3 "
            "--run-config-search-min-model-batch-size 2 -c 1,4 -b 1,8 "
            "--objectives perf_throughput:10,perf_latency_p99:5 "
            "--constraints gpu_used_memory:max:800 --latency-budget 50 --min-throughput 10"
        )
    )
    assert options.run_config_search_mode == "optuna"
    assert (options.concurrency, options.batch_sizes) == ([1, 4], [1, 8])
    assert [spec.name for spec in specs] == ["a", "b"]
    assert specs[0].objectives == {"perf_throughput": 10, "perf_latency_p99": 5}
    assert specs[1].constraints == {
        "gpu_used_memory": Limit(maximum=800),
        "perf_latency_p99": Limit(maximum=50),
        "perf_throughput": Limit(minimum=10),
    }


YAML = """
model_repository: {repository}
run_config_search_mode: brute
run_config_search_max_instance_count: 2
concurrency: [1, 2]
gpus: []
objectives: [perf_latency_p99]
perf_analyzer_flags: {{percentile: 95}}
profile_models:
  a:
    objectives: {{perf_throughput: 1}}
    constraints: {{perf_latency_p99: {{max: 100}}}}
    weighting: 2
    cpu_only: true
    parameters: {{batch_sizes: [1, 4], concurrency: {{start: 2, stop: 8, step: 2}}}}
    model_config_parameters: {{max_batch_size: [1, 8]}}
  b:
"""


def test_accepts_the_yaml_of_model_analyzer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(YAML.format(repository=repository(tmp_path, "a", "b")))
    options, specs = complete_options(parse(f"-f {path} --run-config-search-mode quick"))
    assert options.run_config_search_mode == "quick", "the command line overrides the file"
    assert options.run_config_search_max_instance_count == 2
    assert options.perf_analyzer_flags == {"percentile": 95}
    assert specs[0] == AnalyzedModel(
        name="a",
        objectives={"perf_throughput": 1.0},
        constraints={"perf_latency_p99": Limit(maximum=100)},
        weighting=2.0,
        batch_sizes=[1, 4],
        concurrency=[2, 4, 6, 8],
        model_config_parameters={"max_batch_size": [1, 8]},
        is_cpu_only=True,
    )
    assert specs[1].objectives == {"perf_latency_p99": 1.0}
    assert "'gpus' has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"run_config_search_max_instances": 1}, "did you mean 'run_config_search_"),
        ({"run_config_search_max_instance_count": "many"}, "run_config_search_max_instance_count"),
        ({"concurrency": "x"}, "expected numbers"),
        ({"profile_models": {"a": {"objectiv": 1}}}, "unknown setting 'objectiv'"),
        ([1], "expected options"),
    ],
)
def test_rejects_an_invalid_file(tmp_path: Path, document: Any, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(OptionError, match=message):
        complete_options(parse(f"-f {path} -m {repository(tmp_path, 'a')} --profile-models a"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-m {r}", "--profile-models is required"),
        ("--profile-models a", "--model-repository is required"),
        (
            "-m {r} --profile-models a --triton-launch-mode docker",
            "--triton-launch-mode is 'docker', expected local",
        ),
        ("-m {r} --profile-models a --constraints p99:50", "metric:min|max:value"),
        ("-m {r} --profile-models a --perf-analyzer-flags x", "JSON object"),
        ("-f {r}/none.yaml", "cannot be read"),
    ],
)
def test_rejects_invalid_flags(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("|", r"\|")):
        complete_options(parse(line.format(r=repository(tmp_path, "a"))))


def test_numbers() -> None:
    assert numbers("1,2,8") == [1, 2, 8]
    assert numbers("1-3") == [1, 2, 3]
    assert numbers("2:8:3") == [2, 5, 8]


def test_help_lists_every_option() -> None:
    for name in ("profile", "report"):
        sub = command.commands[name]
        text = sub.get_help(click.Context(sub, info_name=name))
        assert isinstance(sub, OptionsCommand)
        assert all(f"--{option}" in text for option in sub.options)
