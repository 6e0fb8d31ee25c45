"""Tests `naiad perf` against a real server: all protocols, all kinds of load, and failing servers.

Windows are short and the stability limit is wide, because these tests check requests and reports,
not speed.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.cli.main import naiad as naiad_group
from naiad.cli.main import run
from tests.server.harness import (
    Endpoints,
    Server,
    launch_naiad,
    naiad,
    naiad_command,
    naiad_environment,
)

FAST = ["-p", "60", "-s", "100000", "--max-trials", "3"]

SEQUENCE_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "IN" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 600000000
  direct { }
  control_input {
    name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }
  }
  control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }
  control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
}
instance_group { count: 4 kind: KIND_CPU }
"""
SEQUENCE_MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Fails unless each sequence starts once, continues and ends."""

    def initialize(self, args):
        self.open = set()

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        names = ("START", "END", "ID")
        tensors = [pb_utils.get_input_tensor_by_name(request, name) for name in names]
        start, end, sequence = (int(tensor.as_numpy().ravel()[0]) for tensor in tensors)
        if bool(start) == (sequence in self.open):
            error = pb_utils.TritonError(f"sequence {sequence} is out of order")
            return pb_utils.InferenceResponse(error=error)
        self.open.add(sequence)
        if end:
            self.open.discard(sequence)
        count = np.array([len(self.open)], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", count)])
'''


def perf(*arguments: str, code: int = 0) -> str:
    """Runs the command in this process, which is faster than another process."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        exit_code = run(naiad_group, "naiad", ["perf", *arguments])
    assert exit_code == code, out.getvalue()
    return out.getvalue()


def figure(text: str, name: str) -> float:
    line = next(line for line in text.splitlines() if line.strip().startswith(name))
    return float(line.split(":")[1].split()[0])


@pytest.fixture(scope="module")
def sequence_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sequences")
    (folder / "sums" / "1").mkdir(parents=True)
    (folder / "sums" / "config.pbtxt").write_text(SEQUENCE_CONFIG)
    (folder / "sums" / "1" / "model.py").write_text(SEQUENCE_MODEL)
    with naiad([str(folder)]) as server:
        yield server


@pytest.mark.parametrize(
    "flags",
    [
        ["-i", "http"],
        ["-i", "http", "-b", "4", "--input-tensor-format", "json"],
        ["-i", "grpc"],
        ["-i", "grpc", "--streaming"],
        ["-i", "grpc", "--grpc-compression-algorithm", "gzip"],
    ],
)
def test_concurrency(main_server: Endpoints, flags: list[str]) -> None:
    url = main_server.grpc if "grpc" in flags else main_server.http
    text = perf("-m", "add_sub", "-u", url, "--concurrency-range", "1:3:2", *flags, *FAST)
    assert text.count("Request concurrency:") == 2
    assert figure(text, "Request count") > 0
    assert figure(text, "Successful request count") > 0
    assert "Avg request latency" in text
    assert "Concurrency: 3, throughput:" in text
    assert "failed" not in text


@pytest.mark.parametrize("flags", [["-i", "http"], ["-i", "grpc"], ["-i", "grpc", "--streaming"]])
def test_rates(main_server: Endpoints, flags: list[str], tmp_path: Path) -> None:
    url = main_server.grpc if "grpc" in flags else main_server.http
    report = tmp_path / "r.csv"
    text = perf(
        "-m",
        "add_sub",
        "-u",
        url,
        "--request-rate-range",
        "100",
        "-p",
        "300",
        "-s",
        "100000",
        "-f",
        str(report),
        *flags,
    )
    assert "Using uniform distribution" in text
    assert figure(text, "Avg send request rate") > 0
    row = next(csv.DictReader(io.StringIO(report.read_text())))
    assert float(row["Request Rate"]) == 100


def test_intervals_count_windows_and_poisson(main_server: Endpoints, tmp_path: Path) -> None:
    intervals = tmp_path / "i.txt"
    intervals.write_text("2000\n3000\n")
    counted = [
        "--measurement-mode",
        "count_windows",
        "--measurement-request-count",
        "20",
        "-s",
        "100000",
    ]
    text = perf(
        "-m", "add_sub", "-u", main_server.http, "--request-intervals", str(intervals), *counted
    )
    assert figure(text, "Request count") >= 60
    assert "Request Rate: 400.00" in text
    text = perf(
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--request-rate-range",
        "200",
        "--request-distribution",
        "poisson",
        *counted,
    )
    assert "Using poisson distribution" in text


def test_a_fixed_number_of_requests(main_server: Endpoints) -> None:
    text = perf(
        "-m",
        "add_sub",
        "-i",
        "grpc",
        "-u",
        main_server.grpc,
        "--request-count",
        "25",
        "--concurrency-range",
        "4",
    )
    assert figure(text, "Request count") == 25
    assert figure(text, "Inference count") >= 25


def test_binary_search_and_threshold(main_server: Endpoints) -> None:
    flags = [
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--concurrency-range",
        "1:4:1",
        "-l",
        "100000",
        "--binary-search",
        *FAST,
    ]
    text = perf(*flags)
    assert [
        line.split(",")[0] for line in text.splitlines() if line.startswith("Concurrency:")
    ] == ["Concurrency: 1", "Concurrency: 4"]


def test_streams_of_a_decoupled_model(main_server: Endpoints, tmp_path: Path) -> None:
    data, export = tmp_path / "d.json", tmp_path / "e.json"
    data.write_text(json.dumps({"data": [{"COUNT": [3]}, {"COUNT": [5]}]}))
    flags = [
        "-m",
        "repeat",
        "-i",
        "grpc",
        "-u",
        main_server.grpc,
        "--streaming",
        "--input-data",
        str(data),
    ]
    text = perf(*flags, "--concurrency-range", "2", "--profile-export-file", str(export), *FAST)
    assert "Detected decoupled model" in text
    assert figure(text, "Response Throughput") > 3 * figure(text, "Throughput") * 0.9
    requests = json.loads(export.read_text())["experiments"][0]["requests"]
    assert {len(request["response_timestamps"]) for request in requests} == {3, 5}
    assert [output["INDEX"] for output in requests[0]["response_outputs"]] == list(
        range(len(requests[0]["response_outputs"]))
    )


def test_generate_stream_and_token_figures(main_server: Endpoints) -> None:
    flags = [
        "-m",
        "words",
        "-u",
        main_server.http,
        "--streaming",
        "--isl",
        "6",
        "--num-prompts",
        "4",
        "--request-count",
        "12",
    ]
    text = perf(*flags)
    assert "Output sequence length (tokens)" in text
    assert "| 6.00" in text
    grpc = perf(
        "-m",
        "words",
        "-i",
        "grpc",
        "-u",
        main_server.grpc,
        "--streaming",
        "--isl",
        "6",
        "--request-count",
        "12",
    )
    assert "Time to first token (ms)" in grpc


def test_growing_burst(main_server: Endpoints, tmp_path: Path) -> None:
    export = tmp_path / "e.json"
    flags = [
        "-m",
        "repeat",
        "-i",
        "grpc",
        "-u",
        main_server.grpc,
        "--streaming",
        "--input-data",
        str(_count(tmp_path, 4)),
    ]
    perf(
        *flags,
        "--periodic-concurrency-range",
        "1:7:2",
        "--request-period",
        "2",
        "--profile-export-file",
        str(export),
    )
    assert len(json.loads(export.read_text())["experiments"][0]["requests"]) == 7


def _count(folder: Path, value: int) -> Path:
    path = folder / "count.json"
    path.write_text(json.dumps({"data": [{"COUNT": [value]}]}))
    return path


def test_validation_data(main_server: Endpoints, tmp_path: Path) -> None:
    step = {"INPUT0": [1] * 16, "INPUT1": [2] * 16}
    path = tmp_path / "d.json"
    for expected, code in (([3] * 16, 0), ([9] * 16, 99)):
        path.write_text(json.dumps({"data": [step], "validation_data": [{"OUTPUT0": expected}]}))
        text = perf(
            "-m",
            "add_sub",
            "-i",
            "grpc",
            "-u",
            main_server.grpc,
            "--input-data",
            str(path),
            *FAST,
            code=code,
        )
        assert ("differs from validation_data" in text) == bool(code)


def test_strings(main_server: Endpoints) -> None:
    text = perf(
        "-m",
        "identity_bytes",
        "-u",
        main_server.http,
        "--shape",
        "TEXT:3",
        "--string-data",
        "hi",
        "-b",
        "2",
        *FAST,
    )
    assert figure(text, "Inference count") >= 2


@pytest.mark.parametrize(
    ("flags", "first_id"),
    [(["-i", "http"], 1), (["-i", "grpc"], 100_000), (["-i", "grpc", "--streaming"], 200_000)],
)
def test_sequences(sequence_server: Server, flags: list[str], first_id: int) -> None:
    """Each run has ids of its own, because a run that ends may leave a sequence open."""
    url = sequence_server.grpc if "grpc" in flags else sequence_server.http
    counted = [
        "--measurement-mode",
        "count_windows",
        "--measurement-request-count",
        "20",
        "-s",
        "100000",
    ]
    text = perf(
        "-m",
        "sums",
        "-u",
        url,
        "--concurrency-range",
        "3",
        "--sequence-length",
        "4",
        "--sequence-id-range",
        f"{first_id}:{first_id + 90_000}",
        *flags,
        *counted,
    )
    assert figure(text, "Sequence count") > 0
    assert "failed" not in text
    rated = [
        "--request-rate-range",
        "150",
        "--num-of-sequences",
        "3",
        "--sequence-length",
        "5",
        "--serial-sequences",
    ]
    text = perf("-m", "sums", "-u", url, *rated, *flags, "-p", "150", "-s", "100000")
    assert "failed" not in text


def test_metrics_page(main_server: Endpoints) -> None:
    text = perf(
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--collect-metrics",
        "--metrics-url",
        f"127.0.0.1:{main_server.metrics_port}/metrics",
        *FAST,
    )
    assert "Server Prometheus Metrics:" in text
    assert "could not be read" not in text
    text = perf(
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--collect-metrics",
        "--metrics-url",
        "127.0.0.1:1/metrics",
        *FAST,
    )
    assert "the metrics page could not be read: cannot connect" in text


def test_comparison_of_two_protocols(main_server: Endpoints, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    rival = f"grpc=-i grpc -u {main_server.grpc}"
    text = perf(
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--label",
        "http",
        "--compare",
        rival,
        "--html",
        str(page),
        *FAST,
    )
    assert "| Concurrency: 1 | grpc" in text
    assert page.read_text().count("<svg") >= 4


def test_a_comparison_whose_second_run_fails_keeps_the_first(
    main_server: Endpoints, tmp_path: Path
) -> None:
    for rival in ("lost=-u 127.0.0.1:1", "bad=--shape nothing:3", "unknown=-m nothing"):
        saved = tmp_path / "run.json"
        flags = ("--compare", rival, "--json", str(saved), *FAST)
        text = perf("-m", "add_sub", "-u", main_server.http, *flags, code=99)
        assert "Inferences/Second" in text
        assert "error: " in text
        assert saved.exists()
        saved.unlink()


# Failures.


def test_reports_an_unknown_model(main_server: Endpoints) -> None:
    text = perf("-m", "nothing", "-u", main_server.http, code=99)
    assert text.startswith(
        "error: HTTP 404: Request for unknown model: 'nothing' is not found; The"
    )
    text = perf("-m", "addsub", "-i", "grpc", "-u", main_server.grpc, code=99)
    assert "NOT_FOUND" in text
    assert "; did you mean 'add_sub'? The server has: add_sub, " in text


def test_stops_if_all_requests_fail(main_server: Endpoints) -> None:
    text = perf("-m", "failing", "-u", main_server.http, "--string-data", "raise", *FAST, code=99)
    assert "Given up: all" in text
    assert "requests of a window failed: HTTP 500" in text


def test_reports_a_missing_server() -> None:
    assert (
        perf("-m", "m", "-u", "127.0.0.1:1", code=99)
        == "error: cannot connect to 127.0.0.1:1: Connection refused\n"
    )
    assert "Connection refused" in perf("-m", "m", "-i", "grpc", "-u", "127.0.0.1:1", code=99)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reports_the_port_of_another_protocol(main_server: Endpoints, protocol: str) -> None:
    wrong = main_server.grpc if protocol == "http" else main_server.http
    text = perf("-m", "add_sub", "-i", protocol, "-u", wrong, code=99)
    assert text.startswith("error: ")
    assert len(text.splitlines()) == 1
    other = "gRPC" if protocol == "http" else "HTTP"
    assert f"; this looks like the {other} port: " in text


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_reports_the_metrics_port(main_server: Endpoints, protocol: str) -> None:
    url = f"127.0.0.1:{main_server.metrics_port}"
    text = perf("-m", "add_sub", "-i", protocol, "-u", url, code=99)
    assert "; this looks like the metrics port: use the" in text


def test_a_decoupled_model_needs_streaming(main_server: Endpoints) -> None:
    assert "can only be measured with --streaming" in perf(
        "-m", "repeat", "-u", main_server.http, code=1
    )


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_writes_a_partial_report_if_the_server_dies(protocol: str, repositories: Path) -> None:
    server = launch_naiad([str(repositories / "main")])
    try:
        server.wait_started()
        url = server.http if protocol == "http" else server.grpc
        command = naiad_command(
            "perf",
            "-m",
            "add_sub",
            "-i",
            protocol,
            "-u",
            url,
            "--concurrency-range",
            "1:1000",
            *FAST,
            "-p",
            "100",
        )
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
            if line.startswith("Request concurrency: 2"):
                server.process.kill()
        assert running.wait(240) == 99
        running.stdout.close()
    finally:
        server.stop()
    text = "".join(lines)
    assert "Traceback" not in text
    assert "Given up: " in text
    assert "Concurrency: 1, throughput:" in text


def test_an_interrupted_run_writes_a_report(main_server: Endpoints, tmp_path: Path) -> None:
    report = tmp_path / "r.csv"
    command = naiad_command(
        "perf",
        "-m",
        "add_sub",
        "-u",
        main_server.http,
        "--concurrency-range",
        "1:1000",
        *FAST,
        "-f",
        str(report),
    )
    running = subprocess.Popen(
        command, env=naiad_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Request concurrency: 2"):
            running.send_signal(2)
            break
    out, err = running.communicate(timeout=240)
    assert running.returncode == 130
    match = re.search(r"Interrupted after (\d+) finished levels\.", err)
    assert match is not None
    assert int(match[1]) >= 1
    assert "Concurrency: 1, throughput:" in out
    assert len(report.read_text().splitlines()) == 1 + int(match[1])
