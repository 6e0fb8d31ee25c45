"""`naiad analyze` with real servers: searches, failing configurations, resuming, ensembles, remote
servers, writing back.

What is best depends on how busy the machine is: it is compared with what was measured. That
searches find the best is tests/unit/analyze/test_search.py.
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
    """Best with batches of 4 in 2 instances. Batches of 8 do not load, and 3 instances kill the server when told so."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.count = config["instance_group"][0]["count"]
        self.size = config["max_batch_size"]
        if self.size == 8:
            raise RuntimeError("out of memory, says the model")
        if self.count == 3 and "kills_server" in config.get("parameters", {}):
            os.kill(os.getppid(), 9)

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        time.sleep(0.006 if self.count <= 2 else 0.02)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
'''
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 2
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "sleeper" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }
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


def analyze(given: list[str], code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        found = run(naiad_group, "naiad", given)
    assert found == code, out.getvalue()
    return out.getvalue()


def measured(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "cp" / FILE).read_text().splitlines()]
    return [line["measurement"] for line in lines if line["kind"] == "measurement"]


def ranking(folder: Path) -> list[dict[str, Any]]:
    document = json.loads((folder / "out" / "results.json").read_text())
    found: list[dict[str, Any]] = document[0]["ranking"]
    return found


def assert_best(folder: Path) -> None:
    """The one that answered most is the winner."""
    rates = {one["outcomes"][0]["config_name"]: 0.0 for one in measured(folder)}
    for one in measured(folder):
        if not one["error"]:
            name = one["outcomes"][0]["config_name"]
            rates[name] = max(rates[name], one["outcomes"][0]["figures"]["perf_throughput"])
    # Of loads that are nearly as good as the best of a configuration, the one that answers soonest
    # counts.
    winner = ranking(folder)[0]
    assert rates[winner["name"]] >= 0.97 * max(rates.values())


def tried(folder: Path) -> set[tuple[int, int]]:
    """Instances and batch sizes of what could be measured, the configuration as it is aside."""
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


def test_a_configuration_that_does_not_load_is_noted(models: Path, tmp_path: Path) -> None:
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


def test_a_killed_run_goes_on_and_measures_nothing_twice(models: Path, tmp_path: Path) -> None:
    given = arguments(tmp_path, *SMALL, "--run-config-search-mode", "quick")
    first = subprocess.Popen(
        naiad_command(*given),
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
    before = measured(tmp_path)
    text = analyze(given)
    assert f"{len(before)} measurements are known from the checkpoint" in text
    after = measured(tmp_path)
    assert after[: len(before)] == before
    assert len({one["key"] for one in after}) == len(after) >= len(before)
    names = [
        (one["outcomes"][0]["config_name"], json.dumps(one["outcomes"][0]["values"]))
        for one in after
    ]
    assert len({name for name, _ in names}) == len(set(names)), "each name means one configuration"
    again = analyze(given)
    assert len(measured(tmp_path)) == len(after)
    assert f"{len(after)} measurements are known" in again


def test_an_interrupt_leaves_a_report(models: Path, tmp_path: Path) -> None:
    given = arguments(tmp_path, *BRUTE)
    running = subprocess.Popen(
        naiad_command(*given),
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
    assert "the same command goes on from here" in out
    assert (tmp_path / "out" / "report.html").exists()
    assert wait_gone(children) == []


def test_a_configuration_that_kills_the_server(models: Path, tmp_path: Path) -> None:
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
    # Downwards from 3 instances: the search goes on after the server was killed.
    given = arguments(
        tmp_path,
        *sizes,
        "--run-config-search-mode",
        "quick",
        "--run-config-search-max-instance-count",
        "4",
        "-c",
        "8",
    )
    text = analyze(given)
    errors = [one["error"] for one in measured(tmp_path) if one["error"]]
    assert len(errors) == 1
    assert errors[0].startswith("the server ended: ")
    assert "failed: the server ended" in text
    assert (2, 4) in tried(tmp_path)
    assert_best(tmp_path)


def test_an_ensemble_is_searched_through_its_parts(models: Path, tmp_path: Path) -> None:
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


def test_the_winner_is_written_back(models: Path, tmp_path: Path) -> None:
    given = arguments(
        tmp_path, *SMALL, *BRUTE, "-c", "16", "--run-config-search-min-model-batch-size", "4"
    )
    # The configuration as it is, of batches of 2, is slower than any other by far.
    (models / "sleeper" / "1" / "model.py").write_text(
        MODEL.replace("0.006 if self.count <= 2 else 0.02", "0.2 if self.size == 2 else 0.006")
    )
    text = analyze([*given, "--write-best-config"])
    winner = ranking(tmp_path)[0]
    (outcome,) = winner["best"]["outcomes"]
    assert f"config.pbtxt is now {winner['name']}" in text
    written = (models / "sleeper" / "config.pbtxt").read_text()
    assert f"max_batch_size: {outcome['values']['max_batch_size']}" in written
    assert f"count: {outcome['values']['instance_count']}" in written
    assert (models / "sleeper" / "config.pbtxt.before-analyze").read_text() == CONFIG
    with naiad([str(models)]) as server:
        assert server.is_ready("/v2/models/sleeper/ready")


@pytest.fixture
def remote(models: Path) -> Iterator[Server]:
    with naiad([str(models)], ["--model-control-mode=explicit"]) as server:
        yield server


def places(server: Server) -> list[str]:
    found = [
        "--triton-launch-mode",
        "remote",
        "--triton-http-endpoint",
        server.http,
        "--triton-grpc-endpoint",
        server.grpc,
    ]
    return [*found, "--triton-metrics-url", f"http://127.0.0.1:{server.metrics_port}/metrics"]


def test_a_server_that_already_runs(remote: Server, tmp_path: Path) -> None:
    flags = [
        "-c",
        "4",
        *BRUTE,
        "--run-config-search-max-instance-count",
        "1",
        "--client-protocol",
        "http",
    ]
    analyze(arguments(tmp_path, *places(remote), *flags))
    assert len(measured(tmp_path)) == 5
    assert not (tmp_path / "out" / "output_model_repository").exists()
    assert remote.process.poll() is None


def test_a_running_server_that_dies_leaves_a_partial_report(remote: Server, tmp_path: Path) -> None:
    command = naiad_command(*arguments(tmp_path, *places(remote), *BRUTE))
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
    assert sum("failed: the server ended" in line for line in lines) == 1, (
        "it is not asked again and again"
    )
    assert (tmp_path / "out" / "report.html").exists()


def test_a_running_server_that_loads_nothing(models: Path, tmp_path: Path) -> None:
    with naiad([str(models)]) as server:
        text = analyze(arguments(tmp_path, *places(server)), code=99)
    assert "error: the server must run with --model-control-mode=explicit" in text
    assert "Traceback" not in text


def test_models_together(models: Path, tmp_path: Path) -> None:
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


def test_a_server_that_cannot_start(models: Path, tmp_path: Path) -> None:
    text = analyze(arguments(tmp_path, "--triton-server-path", "/bin/false"), code=99)
    assert "error: the server ended while it started" in text
    text = analyze(arguments(tmp_path, "--triton-server-path", str(tmp_path / "none")), code=99)
    assert "error: the server cannot be started" in text
    text = analyze(
        arguments(
            tmp_path, "--triton-launch-mode", "remote", "--triton-http-endpoint", "127.0.0.1:1"
        ),
        code=99,
    )
    assert "the server at 127.0.0.1:1 cannot be used" in text


def test_a_model_that_does_not_load_at_all(models: Path, tmp_path: Path) -> None:
    (models / "sleeper" / "1" / "model.py").write_text("raise RuntimeError('never')")
    text = analyze(arguments(tmp_path), code=99)
    assert "never" in text
    assert "Traceback" not in text
