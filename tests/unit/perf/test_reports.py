"""Tests reports: perf_analyzer's lines and columns, exports, comparisons and pages."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from naiad.perf.channels.address import Address
from naiad.perf.channels.http_head import parse_head
from naiad.perf.channels.infer_request import ClientRequest, InputTensor
from naiad.perf.data.output_check import make_check
from naiad.perf.load.driver import DriverOptions
from naiad.perf.load.level import Level, Mode
from naiad.perf.load.traffic import Traffic
from naiad.perf.measure.gpu_readings import GpuReadings, merge_readings, parse_samples, summarize
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.ranges import Range
from naiad.perf.measure.recorder import Detail
from naiad.perf.measure.server_statistics import Counters, ModelDelta
from naiad.perf.measure.stability import Verdict
from naiad.perf.measure.token_metrics import TokenChunk
from naiad.perf.measure.window import Window, WindowPlan
from naiad.perf.measure.window import summarize as summarize_windows
from naiad.perf.options import PerfOptions
from naiad.perf.prepare import LoadTarget
from naiad.perf.report.compare import comparison_text, parse_rival, rival_options
from naiad.perf.report.csv_report import csv_text
from naiad.perf.report.perf_page import perf_page
from naiad.perf.report.profile_export import write_profile
from naiad.perf.report.saved_run import SavedRun, encode_run, read_run, save_run
from naiad.perf.report.text_report import last_table, level_text, settings_text
from naiad.settings.option import OptionError
from tests.unit.perf.facts import add_sub
from tests.unit.perf.test_measure import records

US = 1000


def delta() -> ModelDelta:
    phases = {
        "success": 300,
        "queue": 20,
        "compute_input": 30,
        "compute_infer": 40,
        "compute_output": 50,
    }
    return ModelDelta(
        "add_sub",
        "",
        Counters(4, 2, {"success": 4}, {phase: 4 * value * US for phase, value in phases.items()}),
    )


def result(
    value: float = 1,
    latency_us: float = 500,
    *,
    is_stable: bool = True,
    error: str = "",
    details: list[Detail] | None = None,
) -> LevelResult:
    gpu = GpuReadings({"GPU-1": 0.5}, {"GPU-1": 100.0}, {"GPU-1": 1e9}, {"GPU-1": 2e9})
    window = Window(0, 1_000_000_000, records([latency_us] * 4, details=details), delta(), gpu)
    summary = summarize_windows([window], WindowPlan(is_llm=bool(details)))
    return LevelResult(
        Level(Mode.CONCURRENCY, value), summary, Verdict(is_stable, "because"), [window], error
    )


OPTIONS = PerfOptions(model="add_sub", concurrency_range=Range(1, 2, 1, True))


def test_prints_the_lines_of_perf_analyzer() -> None:
    text = level_text(result(), OPTIONS, add_sub())
    for line in (
        "  Client: ",
        "    Request count: 4",
        "    Throughput: 4 infer/sec",
        "    Avg latency: 500 usec (standard deviation 0 usec)",
        "    p50 latency: 500 usec",
        "    p99 latency: 500 usec",
        "    Avg HTTP time: 500 usec (send/recv 0 usec + response wait 500 usec)",
        "  Server: ",
        "    Inference count: 4",
        "    Execution count: 2",
        "    Successful request count: 4",
        "    Avg request latency: 300 usec (overhead 160 usec + queue 20 usec "
        "+ compute input 30 usec + compute infer 40 usec + compute output 50 usec)",
        "    Avg GPU Utilization:",
        "      GPU-1 : 50.0%",
    ):
        assert line in text.split("\n"), line
    assert "  Stable: because" in text
    assert "Concurrency limit: 2 concurrent requests" in settings_text(OPTIONS, add_sub())
    assert last_table([result(), result(2, 700)], OPTIONS) == (
        "Inferences/Second vs. Client Average Batch Latency\n"
        "Concurrency: 1, throughput: 4 infer/sec, latency 500 usec\n"
        "Concurrency: 2, throughput: 4 infer/sec, latency 700 usec\n"
    )


def test_reports_unstable_and_aborted_levels() -> None:
    assert "[WARNING] Not stable after 1 windows: because" in level_text(
        result(is_stable=False), OPTIONS, add_sub()
    )
    assert "Given up: gone" in level_text(result(error="gone"), OPTIONS, add_sub())
    assert "(not stable)" in last_table([result(is_stable=False)], OPTIONS)
    empty = LevelResult(Level(Mode.CONCURRENCY, 1), None, Verdict(False, ""), [], "cannot connect")
    assert "given up: cannot connect" in last_table([empty], OPTIONS)


def test_csv_columns() -> None:
    plain = list(csv.DictReader(io.StringIO(csv_text([result()], OPTIONS, add_sub()))))
    assert list(plain[0]) == [
        "Concurrency", "Inferences/Second", "Client Send", "Network+Server Send/Recv",
        "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output",
        "Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency",
    ]  # fmt: skip
    assert plain[0]["Network+Server Send/Recv"] == "360"
    verbose = msgspec.structs.replace(OPTIONS, verbose_csv=True, collect_metrics=True)
    row = next(csv.DictReader(io.StringIO(csv_text([result()], verbose, add_sub()))))
    assert row["Avg GPU Utilization"] == "GPU-1:0.5;"
    assert row["Avg latency"] == "500"
    assert list(row)[-6:-4] == ["request/response", "response wait"]


def test_gpu_metrics_are_read_from_the_page() -> None:
    page = (
        "# HELP nv_gpu_utilization x\n"
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25\n'
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 1e9\n'
        'nv_inference_count{model="m"} 3\n'
        "nv_gpu_utilization broken\n"
    )
    readings = summarize(
        [parse_samples(page), parse_samples(page.replace("0.25", "0.75").replace("1e9", "3e9"))]
    )
    assert readings.utilization == {"GPU-1": 0.5}
    assert readings.memory_used_bytes == {"GPU-1": 3e9}
    assert merge_readings([readings, GpuReadings(problem="gone")]).problem == "gone"


def tensor(name: str, values: bytes) -> InputTensor:
    return InputTensor(name, "INT32", (1,), values)


def test_profile_export(tmp_path: Path) -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9")
    body = json.dumps(
        {"outputs": [{"name": "OUT", "datatype": "INT32", "shape": [2], "data": [5, 6]}]}
    ).encode()
    detail = Detail(0, 3, 10, [20], [(head, body)])
    level = result()
    level.windows = [Window(0, 100, records([1.0], details=[detail]))]
    target = LoadTarget(
        Traffic("http", Address("localhost", 8000)),
        DriverOptions(),
        WindowPlan(),
        add_sub(),
        inputs=[ClientRequest((tensor("IN", b"\x07\0\0\0"),), ())],
    )
    write_profile(tmp_path / "p.json", [level], target, "triton", "", "1.0")
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["service_kind"] == "triton"
    experiment = document["experiments"][0]
    assert experiment["experiment"] == {"mode": "concurrency", "value": 1}
    request = experiment["requests"][0]
    assert request["request_inputs"] == {"IN": 7}
    assert request["response_outputs"] == [{"OUT": [5, 6]}]
    assert request["response_timestamps"][0] - request["timestamp"] == 10
    assert experiment["window_boundaries"][1] - experiment["window_boundaries"][0] == 100


def test_validation_data() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9")
    body = json.dumps(
        {"outputs": [{"name": "OUT", "datatype": "INT32", "shape": [1], "data": [5]}]}
    ).encode()
    check = make_check(
        [(tensor("OUT", b"\x05\0\0\0"),), (tensor("OUT", b"\x06\0\0\0"),), (tensor("NONE", b""),)],
        is_grpc=False,
    )
    assert check(0, (head, body)) is None
    assert "differs from validation_data" in str(check(1, (head, body)))
    assert "no output 'NONE'" in str(check(2, (head, body)))


@pytest.mark.parametrize(
    ("found", "tolerance", "problem"),
    [
        ([1.0, 2.0], 0.0, ""),
        ([1.0, 2.00001], 1e-4, ""),
        ([1.0, 2.5], 1e-4, "by up to 0.5 (--validation-tolerance allows 0.0001)"),
        ([1.0, 2.00001], 0.0, "by up to 1e-05 (--validation-tolerance allows 0)"),
        ([1.0], 1.0, ", byte for byte"),
    ],
)
def test_validation_of_floats(found: list[float], tolerance: float, problem: str) -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9")
    outputs = [{"name": "OUT", "datatype": "FP32", "shape": [len(found)], "data": found}]
    expected = tensor("OUT", np.array([1, 2], np.float32).tobytes())
    check = make_check([(expected,)], is_grpc=False, tolerance=tolerance)
    said = check(0, (head, json.dumps({"outputs": outputs}).encode()))
    assert (said or "").partition("differs from validation_data")[2].strip() == problem.strip()


# Comparisons.


def saved(label: str, rate_factor: int = 1, **options: Any) -> SavedRun:
    return save_run(
        OPTIONS, [result(value, 500 / rate_factor, **options) for value in (1, 2)], label
    )


def test_a_run_can_be_saved_and_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run = saved("one")
    path.write_text(encode_run(run))
    assert read_run(path) == run
    path.write_text("{}")
    with pytest.raises(OptionError, match="was not written by --json"):
        read_run(path)


def test_parses_the_values_of_compare() -> None:
    assert parse_rival("triton=-u host:1 -i grpc").arguments == ("-u", "host:1", "-i", "grpc")
    assert parse_rival("triton=-u host:1").label == "triton"
    assert parse_rival("another server=-u host:1").label == "another server"
    assert parse_rival("-u host:1").label == "-u host:1"
    assert parse_rival("--label=x").arguments == ("--label=x",)
    assert parse_rival("old=a/b.json").path == Path("a/b.json")
    with pytest.raises(OptionError, match="expected flags"):
        parse_rival("nonsense")
    options = rival_options(
        msgspec.structs.replace(OPTIONS, json="x", html="y"), parse_rival("t=-u host:1")
    )
    assert (options.url, options.model, options.json, options.label) == (
        "host:1",
        "add_sub",
        "",
        "t",
    )
    with pytest.raises(OptionError, match="No such option"):
        rival_options(OPTIONS, parse_rival("t=--bogus"))


def test_comparison_on_the_terminal() -> None:
    text = comparison_text([saved("ours", 2), saved("theirs")])
    assert "| Concurrency: 1 | theirs | 4.0       | x1.00 | 500    | 500    | x2.00     |" in text
    assert "ours   " in text
    assert "█" in text


class _Checker(HTMLParser):
    """Counts tags and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        assert all(
            "://" not in (value or "") for name, value in attrs if name in ("src", "href")
        ), "nothing from elsewhere"
        if tag not in ("meta", "line", "circle", "rect", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag


def check_page(text: str) -> dict[str, int]:
    checker = _Checker()
    checker.feed(text)
    assert checker.open == []
    return checker.count


def test_the_page_is_complete_in_one_file() -> None:
    chunks = [Detail(0, -1, 0, [1_000_000, 3_000_000], [TokenChunk(1, 9, 2), TokenChunk(1)])] * 4
    count = check_page(
        perf_page([saved("<b>one</b>", details=chunks), saved("two", is_stable=False)])
    )
    assert count["svg"] >= 6
    assert "b" not in count, "names are escaped"
    check_page(perf_page([saved("only")]))
    check_page(
        perf_page(
            [
                save_run(
                    OPTIONS,
                    [LevelResult(Level(Mode.CONCURRENCY, 1), None, Verdict(False, ""), [], "gone")],
                    "none",
                )
            ]
        )
    )
