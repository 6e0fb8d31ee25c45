"""Tests `naiad analyze` with real servers: searches, failing configurations, resuming, ensembles,
remote servers and --write-best-config.

Which configuration is best depends on how busy the machine is, so the tests compare the winner with
the measurements. tests/unit/analyze/test_search.py tests that searches find the best.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from naiad.analyze.checkpoint import FILE
from naiad.cli.main import naiad as naiad_group
from naiad.cli.main import run
from tests.server.harness import (
    Server,
    naiad,
    naiad_command,
    naiad_environment,
    process_tree,
    wait_gone,
)

pytestmark = pytest.mark.slow

CONFIG = """
backend: "python"
max_batch_size: 2
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
dynamic_batching { }
"""
MODEL = '''
import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Best with batches of 4 in 2 instances. max_batch_size 8 fails to load, and 3 instances
    kill the server if the parameter kills_server is set."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.count = config["instance_group"][0]["count"]
        self.size = config["max_batch_size"]
        if self.size == 8:
            raise RuntimeError("out of memory, says the model")
        if self.count == 3 and "kills_server" in config.get("parameters", {}):
            os.kill(os.getppid(), 9)

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
        arrays = [tensor.as_numpy() for tensor in inputs]
        time.sleep(0.006 if self.count <= 2 else 0.02)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
'''
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 2
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step {
    model_name: "sleeper" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
  }
}
"""
SPACE = [
    "--run-config-search-max-instance-count",
    "3",
    "--run-config-search-max-model-batch-size",
    "8",
]
SPACE += ["--run-config-search-max-concurrency", "16"]
SMALL = [
    "--run-config-search-max-instance-count",
    "2",
    "--run-config-search-max-model-batch-size",
    "4",
]
BRUTE = ["--run-config-search-mode", "brute"]
FAST = ["--measurement-interval", "60", "--stability-percentage", "100000", "--max-trials", "3"]
FAST += ["--comparison-rounds", "3"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name, config in (("sleeper", CONFIG), ("both", ENSEMBLE)):
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(config)
    (tmp_path / "models" / "sleeper" / "1" / "model.py").write_text(MODEL)
    return tmp_path / "models"


def arguments(folder: Path, *more: str, model: str = "sleeper") -> list[str]:
    places = [
        "-m",
        str(folder / "models"),
        "--profile-models",
        model,
        "-s",
        str(folder / "cp"),
        "-e",
        str(folder / "out"),
    ]
    return ["analyze", "profile", *places, *SPACE, *FAST, *more]


def analyze(command_line: list[str], expected_code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = run(naiad_group, "naiad", command_line)
    assert code == expected_code, out.getvalue()
    return out.getvalue()


def stored(folder: Path) -> list[dict[str, Any]]:
    """Returns all measurements of the checkpoint."""
    lines = [json.loads(line) for line in (folder / "cp" / FILE).read_text().splitlines()]
    return [line["measurement"] for line in lines if line["kind"] == "measurement"]


def measured(folder: Path) -> list[dict[str, Any]]:
    """Returns the measurements of the search and the sweep."""
    return [one for one in stored(folder) if one["stage"] != "comparison"]


def ranking(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder / "out" / "results.json").read_text())
    entries: list[dict[str, Any]] = document[0]["ranking"]
    return entries


def assert_best(folder: Path) -> None:
    """Asserts that the winner is the configuration with the highest gain at equal load.

    Without a gain it is the default.
    """
    entries = ranking(folder)
    gains = {
        entry["name"]: entry["gains"][0]["gain"]
        for entry in entries
        if entry["gains"] and entry["is_better"]
    }
    expected = max(gains, key=lambda name: gains[name]) if gains else None
    winner = entries[0]
    if expected is None:
        assert winner["name"].endswith("_config_default")
    else:
        assert winner["name"] == expected
    rounds = [one for one in stored(folder) if one["stage"] == "comparison"]
    default_rounds = [one for one in rounds if not one["outcomes"][-1]["values"]]
    assert {one["round"] for one in default_rounds} == {1, 2, 3}


def tried(folder: Path) -> set[tuple[int, int]]:
    """Returns the instance counts and batch sizes that were measured, without the default's."""
    values = [one["outcomes"][-1]["values"] for one in measured(folder) if not one["error"]]
    return {(value["instance_count"], value["max_batch_size"]) for value in values if value}


@pytest.mark.parametrize("mode", ["quick", "optuna"])
def test_searches_find_the_best(models: Path, tmp_path: Path, mode: str) -> None:
    more = [
        "--optuna-min-trials",
        "8",
        "--concurrency-sweep-disable",
        "--run-config-search-max-model-batch-size",
        "4",
    ]
    text = analyze(arguments(tmp_path, "--run-config-search-mode", mode, *more))
    assert_best(tmp_path)
    assert len(tried(tmp_path)) >= 3
    assert (tmp_path / "out" / "report.html").read_text().count("<svg") >= 4
    assert "sleeper_config_default" in text
    variants = list((tmp_path / "out" / "output_model_repository").iterdir())
    assert len(variants) == 3
    assert all((variant / "1" / "model.py").exists() for variant in variants)
    assert Counter(one["key"] for one in measured(tmp_path)).most_common(1)[0][1] == 1


def test_reports_a_configuration_that_fails_to_load(models: Path, tmp_path: Path) -> None:
    text = analyze(
        arguments(tmp_path, *BRUTE, "-c", "8", "--run-config-search-max-instance-count", "1")
    )
    errors = [one["error"] for one in measured(tmp_path) if one["error"]]
    assert len(errors) == 1
    assert "out of memory, says the model" in errors[0]
    assert "1 measurements failed" in text
    assert "out of memory, says the model" in (tmp_path / "out" / "report.html").read_text()
    assert tried(tmp_path) == {(1, 1), (1, 2), (1, 4)}
    assert_best(tmp_path)


def test_a_killed_run_resumes_and_measures_nothing_twice(models: Path, tmp_path: Path) -> None:
    command_line = arguments(tmp_path, *SMALL, "--run-config-search-mode", "quick")
    first = subprocess.Popen(
        naiad_command(*command_line),
        env=naiad_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("sleeper_config_1 "):
            break
    children = process_tree(first.pid)
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()
    assert wait_gone(children) == [], "the server dies with it"
    before = stored(tmp_path)
    text = analyze(command_line)
    assert f"The checkpoint has {len(before)} measurements" in text
    after = stored(tmp_path)
    assert after[: len(before)] == before
    assert len({one["key"] for one in after}) == len(after) >= len(before)
    names = [
        (one["outcomes"][0]["config_name"], json.dumps(one["outcomes"][0]["values"]))
        for one in after
    ]
    assert len({name for name, _ in names}) == len(set(names)), "each name means one configuration"
    again = analyze(command_line)
    assert len(stored(tmp_path)) == len(after)
    assert f"The checkpoint has {len(after)} measurements" in again


def test_an_interrupted_run_writes_a_report(models: Path, tmp_path: Path) -> None:
    command_line = arguments(tmp_path, *BRUTE)
    running = subprocess.Popen(
        naiad_command(*command_line),
        env=naiad_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("sleeper_config_0 "):
            break
    children = process_tree(running.pid)
    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=240)
    assert running.returncode == 130
    assert "run the same command again to resume" in out
    assert (tmp_path / "out" / "report.html").exists()
    assert wait_gone(children) == []


def test_the_search_continues_after_a_configuration_kills_the_server(
    models: Path, tmp_path: Path
) -> None:
    config = models / "sleeper" / "config.pbtxt"
    config.write_text(
        config.read_text() + 'parameters { key: "kills_server" value { string_value: "yes" } }\n'
    )
    (models / "sleeper" / "1" / "model.py").write_text(
        MODEL.replace(
            "os.getppid()",
            "int(open('/proc/%d/status' % os.getppid()).read().split('PPid:')[1].split()[0])",
        )
    )
    sizes = [
        "--run-config-search-min-model-batch-size",
        "4",
        "--run-config-search-max-model-batch-size",
        "4",
    ]
    # The search starts at 3 instances, which kills the server, and then tries fewer.
    command_line = arguments(
        tmp_path,
        *sizes,
        "--run-config-search-mode",
        "quick",
        "--run-config-search-max-instance-count",
        "4",
        "-c",
        "8",
    )
    text = analyze(command_line)
    errors = [one["error"] for one in measured(tmp_path) if one["error"]]
    assert len(errors) == 1
    assert errors[0].startswith("the server died: ")
    assert "failed: the server died" in text
    assert (2, 4) in tried(tmp_path)
    assert_best(tmp_path)


def test_an_ensemble_is_searched_by_varying_its_parts(models: Path, tmp_path: Path) -> None:
    analyze(
        arguments(
            tmp_path,
            *SMALL,
            *BRUTE,
            "-c",
            "16",
            "--run-config-search-min-model-batch-size",
            "4",
            model="both",
        )
    )
    assert tried(tmp_path) == {(1, 4), (2, 4)}
    assert_best(tmp_path)
    folder = tmp_path / "out" / "output_model_repository"
    for name in {one["name"] for one in ranking(tmp_path)} - {"both_config_default"}:
        text = (folder / name / "config.pbtxt").read_text()
        part = re.search(r'model_name: "(sleeper_config_\d+)"', text)
        assert part is not None
        assert (folder / part.group(1)).is_dir()
        assert "max_batch_size: 4" in text


def test_writes_the_winner_to_the_repository(models: Path, tmp_path: Path) -> None:
    command_line = arguments(
        tmp_path, *SMALL, *BRUTE, "-c", "16", "--run-config-search-min-model-batch-size", "4"
    )
    # The default configuration, with batches of 2, is by far the slowest.
    (models / "sleeper" / "1" / "model.py").write_text(
        MODEL.replace("0.006 if self.count <= 2 else 0.02", "0.2 if self.size == 2 else 0.006")
    )
    text = analyze([*command_line, "--write-best-config"])
    winner = ranking(tmp_path)[0]
    (outcome,) = winner["best"]["outcomes"]
    assert f"config.pbtxt is now {winner['name']}" in text
    written = (models / "sleeper" / "config.pbtxt").read_text()
    assert f"max_batch_size: {outcome['values']['max_batch_size']}" in written
    assert f"count: {outcome['values']['instance_count']}" in written
    assert (models / "sleeper" / "config.pbtxt.before-analyze").read_text() == CONFIG
    with naiad([str(models)]) as server:
        assert server.is_ready("/v2/models/sleeper/ready")


def test_keeps_the_configuration_if_the_winner_is_no_better(models: Path, tmp_path: Path) -> None:
    # Every configuration sleeps 0.02 s for one request, so none can be better than another.
    model = MODEL.replace("0.006 if self.count <= 2 else 0.02", "0.02")
    (models / "sleeper" / "1" / "model.py").write_text(model)
    command_line = arguments(
        tmp_path,
        *BRUTE,
        "-c",
        "1",
        "--run-config-search-max-instance-count",
        "1",
        "--run-config-search-max-model-batch-size",
        "2",
    )
    text = analyze([*command_line, "--write-best-config"])
    assert "is no better than what you have" in text
    assert "config.pbtxt was not changed: sleeper_config_" in text
    assert (models / "sleeper" / "config.pbtxt").read_text() == CONFIG
    assert not (models / "sleeper" / "config.pbtxt.before-analyze").exists()
    assert ranking(tmp_path)[0]["name"] == "sleeper_config_default"
    assert (tmp_path / "out" / "gains.csv").read_text().count("no better than what you have") == 2


def test_stops_if_the_default_fails_and_accepts_data_afterwards(
    models: Path, tmp_path: Path
) -> None:
    model = MODEL.replace(
        "        time.sleep(0.006 if self.count <= 2 else 0.02)",
        "        assert all((array == 1).all() for array in arrays), 'expected ones'",
    )
    (models / "sleeper" / "1" / "model.py").write_text(model)
    flags = [*BRUTE, "-c", "1", "--run-config-search-max-instance-count", "1"]
    flags += ["--run-config-search-max-model-batch-size", "1"]
    text = analyze(arguments(tmp_path, *flags), expected_code=99)
    assert "fails under every load, so no other configuration was tried" in text
    assert "expected ones" in text
    assert '--perf-analyzer-flags \'{"input-data": "data.json"}\'' in text
    assert len(stored(tmp_path)) == 1
    data = tmp_path / "data.json"
    data.write_text('{"data": [{"IN": [1, 1, 1, 1]}]}')
    perf_flags = json.dumps({"input-data": str(data)})
    text = analyze(arguments(tmp_path, *flags, "--perf-analyzer-flags", perf_flags))
    assert "sleeper_config_0" in text
    assert not any(one["error"] for one in stored(tmp_path)[1:])


@pytest.fixture
def remote(models: Path) -> Iterator[Server]:
    with naiad([str(models)], ["--model-control-mode=explicit"]) as server:
        yield server


def remote_flags(server: Server) -> list[str]:
    flags = [
        "--triton-launch-mode",
        "remote",
        "--triton-http-endpoint",
        server.http,
        "--triton-grpc-endpoint",
        server.grpc,
    ]
    return [*flags, "--triton-metrics-url", f"http://127.0.0.1:{server.metrics_port}/metrics"]


def test_measures_on_a_remote_server(remote: Server, tmp_path: Path) -> None:
    flags = [
        "-c",
        "4",
        *BRUTE,
        "--run-config-search-max-instance-count",
        "1",
        "--client-protocol",
        "http",
    ]
    analyze(arguments(tmp_path, *remote_flags(remote), *flags))
    assert len(measured(tmp_path)) == 5
    assert not (tmp_path / "out" / "output_model_repository").exists()
    assert remote.process.poll() is None


def test_writes_a_partial_report_if_the_remote_server_dies(remote: Server, tmp_path: Path) -> None:
    command = naiad_command(*arguments(tmp_path, *remote_flags(remote), *BRUTE))
    running = subprocess.Popen(
        command,
        env=naiad_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    lines: list[str] = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith("sleeper_config_0 "):
            remote.process.kill()
    assert running.wait(240) == 99
    running.stdout.close()
    text = "".join(lines)
    assert "Traceback" not in text
    assert f"error: the server at {remote.http} cannot be used: cannot connect" in text
    assert "best is sleeper_config_" in text
    assert sum("failed: the server died" in line for line in lines) == 1, (
        "the search must stop at the first failure"
    )
    assert (tmp_path / "out" / "report.html").exists()


def test_rejects_a_remote_server_without_explicit_model_control(
    models: Path, tmp_path: Path
) -> None:
    with naiad([str(models)]) as server:
        text = analyze(arguments(tmp_path, *remote_flags(server)), expected_code=99)
    assert "error: the server must run with --model-control-mode=explicit" in text
    assert "Traceback" not in text


def test_measures_several_models_together(models: Path, tmp_path: Path) -> None:
    second = models / "other" / "1"
    second.mkdir(parents=True)
    (second / "model.py").write_text(MODEL)
    (models / "other" / "config.pbtxt").write_text(CONFIG)
    flags = [
        *BRUTE,
        "--run-config-search-max-instance-count",
        "1",
        "--run-config-search-max-model-batch-size",
        "2",
        "-c",
        "4",
    ]
    text = analyze(
        arguments(
            tmp_path,
            "--run-config-profile-models-concurrently-enable",
            *flags,
            model="sleeper,other",
        )
    )
    assert "=== sleeper + other" in text
    assert all(
        set(one["outcomes"][1]["figures"]) >= {"perf_throughput"} for one in measured(tmp_path)
    )
    assert len(measured(tmp_path)) == 5


def test_reports_a_server_that_cannot_start(models: Path, tmp_path: Path) -> None:
    text = analyze(arguments(tmp_path, "--triton-server-path", "/bin/false"), expected_code=99)
    assert "error: the server died during start-up" in text
    text = analyze(
        arguments(tmp_path, "--triton-server-path", str(tmp_path / "none")), expected_code=99
    )
    assert "error: failed to start the server" in text
    text = analyze(
        arguments(
            tmp_path, "--triton-launch-mode", "remote", "--triton-http-endpoint", "127.0.0.1:1"
        ),
        expected_code=99,
    )
    assert "the server at 127.0.0.1:1 cannot be used" in text


def test_reports_a_model_that_never_loads(models: Path, tmp_path: Path) -> None:
    (models / "sleeper" / "1" / "model.py").write_text("raise RuntimeError('never')")
    text = analyze(arguments(tmp_path), expected_code=99)
    assert "never" in text
    assert "Traceback" not in text
