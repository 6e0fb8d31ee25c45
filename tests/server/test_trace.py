"""Tracing against a real server: the settings on both protocols, Triton's file, OpenTelemetry to a
collector process."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.gates import LIMIT_S, eventually
from tests.server.harness import Endpoints, Server, launch_naiad, naiad
from tests.server.trace_reading import ORDER, ReadTrace, read_traces

PARENT_TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{PARENT_TRACE}-{PARENT_SPAN}-01"
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def fp32(name: str, *values: float) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [1, len(values)], "data": list(values)}


def infer(
    server: Endpoints, model: str, *inputs: dict[str, Any], request_id: str = ""
) -> dict[str, Any]:
    status, body = server.post(
        f"/v2/models/{model}/infer", {"id": request_id, "inputs": list(inputs)}
    )
    assert status == 200, body
    response: dict[str, Any] = json.loads(body)
    return response


def infer_sums(server: Endpoints, request_id: str = "") -> None:
    infer(
        server,
        "sums",
        fp32("INPUT0", 1, 2, 3, 4),
        fp32("INPUT1", 1, 1, 1, 0.5),
        request_id=request_id,
    )


def grpc_sums(request_id: str = "") -> list[Any]:
    tensors = []
    for name in ("INPUT0", "INPUT1"):
        tensors.append(grpc_client.InferInput(name, [1, 4], "FP32"))
        tensors[-1].set_data_from_numpy(np.ones((1, 4), np.float32))
    return tensors


# The file.


def written(path: Path) -> list[ReadTrace]:
    """Returns None if the file is missing or is being written."""
    try:
        return read_traces(path)
    except (FileNotFoundError, ValueError):
        return []


class FileServer:
    """A server that writes each trace to a separate file."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path
        self._num_read = 0

    def take(self, count: int = 1) -> list[ReadTrace]:
        """Waits for the traces of the next `count` requests."""
        paths = [
            Path(f"{self.path}.{number}")
            for number in range(self._num_read, self._num_read + count)
        ]
        eventually(lambda: all(written(path) for path in paths), "the traces are written")
        self._num_read += count
        return read_traces(*paths)


@pytest.fixture(scope="module")
def traced(repositories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileServer]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    flags = [
        f"triton,file={path}",
        "triton,log-frequency=1",
        "rate=1",
        "level=TIMESTAMPS",
        "level=TENSORS",
    ]
    with naiad(
        [str(repositories / "traced")], [f"--trace-config={flag}" for flag in flags]
    ) as server:
        yield FileServer(server, path)


class TestFile:
    def test_a_request_over_http(self, traced: FileServer) -> None:
        infer_sums(traced.server, "seven")
        (trace,) = traced.take()
        assert (trace.model, trace.version, trace.request_id, trace.parent_id) == (
            "sums",
            1,
            "seven",
            0,
        )
        assert trace.activities == [name for name in ORDER if not name.startswith("GRPC")]
        assert [activity for activity, _ in trace.tensors] == ["TENSOR_QUEUE_INPUT"] * 2 + [
            "TENSOR_BACKEND_OUTPUT"
        ] * 2
        assert trace.tensors[1][1] == {
            "name": "INPUT1",
            "data": "1,1,1,0.5",
            "shape": "1,4",
            "dtype": "FP32",
        }
        assert trace.tensors[3][1] == {
            "name": "OUTPUT1",
            "data": "0,1,2,3.5",
            "shape": "1,4",
            "dtype": "FP32",
        }
        summary = trace.summary()
        assert summary["http"] >= summary["request"] >= summary["compute"] >= summary["infer"]

    def test_a_request_over_http_in_two_parts(self, traced: FileServer) -> None:
        """Receiving takes visible time: the second part is sent when the server wants it."""
        text = "x" * 200_000
        body = json.dumps(
            {"inputs": [{"name": "ANY", "datatype": "BYTES", "shape": [1], "data": [text]}]}
        ).encode()
        head = (
            "POST /v2/models/context/infer HTTP/1.1\r\nHost: x\r\nExpect: "
            f"100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(
            ("127.0.0.1", traced.server.http_port), timeout=LIMIT_S
        ) as connection:
            connection.sendall(head.encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
            connection.sendall(body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        (trace,) = traced.take()
        times = dict(trace.stamps)
        assert times["HTTP_RECV_END"] > times["HTTP_RECV_START"]
        assert json.loads(trace.tensors[0][1]["data"]) == text

    def test_a_request_over_grpc(self, traced: FileServer) -> None:
        with grpc_client.InferenceServerClient(traced.server.grpc) as client:
            client.infer("sums", grpc_sums(), request_id="g")
        (trace,) = traced.take()
        assert trace.request_id == "g"
        assert trace.activities == [name for name in ORDER if not name.startswith("HTTP")]
        assert "grpc" in trace.summary()

    def test_an_ensemble_and_its_steps(self, traced: FileServer) -> None:
        infer(
            traced.server, "pipeline", fp32("A", 1, 2, 3, 4), fp32("B", 1, 1, 1, 1), request_id="e"
        )
        outer, *steps = traced.take()
        assert (outer.model, outer.request_id) == ("pipeline", "e")
        assert not set(outer.activities) & set(COMPUTE)
        assert [(step.model, step.request_id, step.parent_id) for step in steps] == [
            ("sums", "e", outer.id)
        ] * 2
        for step in steps:
            assert step.activities == ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]
        assert dict(steps[0].stamps)["REQUEST_END"] <= dict(steps[1].stamps)["REQUEST_START"]
        assert dict(outer.stamps)["REQUEST_START"] <= dict(steps[0].stamps)["REQUEST_START"]
        assert dict(steps[1].stamps)["REQUEST_END"] <= dict(outer.stamps)["REQUEST_END"]

    def test_bls_calls_are_part_of_the_trace(self, traced: FileServer) -> None:
        """Only the call that gets the trace is traced."""
        infer(traced.server, "caller", fp32("X", 1, 2, 3, 4), request_id="b")
        outer, inner = traced.take()
        assert (outer.model, inner.model, inner.request_id, inner.parent_id) == (
            "caller",
            "sums",
            "inner",
            outer.id,
        )
        assert dict(inner.stamps)["REQUEST_END"] <= dict(outer.stamps)["COMPUTE_END"]

    def test_a_stream_of_responses(self, traced: FileServer) -> None:
        results: queue.Queue[Any] = queue.Queue()
        count = grpc_client.InferInput("COUNT", [1], "INT32")
        count.set_data_from_numpy(np.array([2], np.int32))
        with grpc_client.InferenceServerClient(traced.server.grpc) as client:
            client.start_stream(lambda result, error: results.put(error))
            client.async_stream_infer(
                "repeat", [count], request_id="s", enable_empty_final_response=True
            )
            assert [results.get(timeout=20) for _ in range(3)] == [None] * 3
            client.async_stream_infer("sums", grpc_sums(), request_id="t")
            assert results.get(timeout=20) is None
            client.stop_stream()
        first, second = traced.take(2)
        assert (first.request_id, second.request_id) == ("s", "t")
        assert first.activities.count("GRPC_SEND_END") == 3
        assert all(
            first.activities.count(name) == 1 for name in ("REQUEST_START", *COMPUTE, "REQUEST_END")
        )
        assert [
            tensor["data"] for activity, tensor in first.tensors if tensor["name"] == "INDEX"
        ] == ["0", "1"]

    def test_generate(self, traced: FileServer) -> None:
        assert traced.server.post("/v2/models/repeat/generate_stream", {"COUNT": 1})[0] == 200
        assert traced.server.post("/v2/models/context/generate", {"ANY": "x"})[0] == 200
        first, second = traced.take(2)
        assert (first.model, second.model) == ("repeat", "context")

    def test_does_not_trace_rejected_requests(self, traced: FileServer) -> None:
        assert (
            traced.server.post("/v2/models/sums/infer", {"inputs": [fp32("INPUT0", 1)]})[0] == 400
        )
        assert (
            traced.server.post("/v2/models/nosuch/infer", {"inputs": [fp32("INPUT0", 1)]})[0] == 404
        )
        infer_sums(traced.server, "after")
        (trace,) = traced.take()
        assert trace.request_id == "after"

    def test_a_model_sees_no_context(self, traced: FileServer) -> None:
        response = infer(
            traced.server,
            "context",
            {"name": "ANY", "datatype": "BYTES", "shape": [1], "data": ['quo"te']},
        )
        assert response["outputs"][0]["data"] == ["none"]
        (trace,) = traced.take()
        assert trace.tensors[0][1]["data"] == '"quo\\"te"'


def test_writes_a_limited_number_and_the_rest_at_shutdown(
    repositories: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    flags = [f"triton,file={path}", "rate=2", "level=TIMESTAMPS"]
    with naiad(
        [str(repositories / "traced")], [f"--trace-config={flag}" for flag in flags]
    ) as server:
        for _ in range(5):
            infer_sums(server)
        eventually(lambda: len(written(path)) == 2, "every second request is traced")
        status, body = server.post("/v2/trace/setting", {"trace_rate": "1", "trace_count": "2"})
        assert (status, json.loads(body)["trace_count"]) == (200, "2")
        for _ in range(4):
            infer_sums(server)
        numbered = tmp_path / "trace.json.0"
        eventually(numbered.exists, "the limited number is written when it is complete")
        assert json.loads(server.get("/v2/trace/setting")[1])["trace_count"] == "0"
        server.post("/v2/models/sums/trace/setting", {"log_frequency": "50", "trace_count": "-1"})
        infer_sums(server)
    assert [trace.model for trace in read_traces(path)] == ["sums"] * 2
    assert [trace.model for trace in read_traces(numbered)] == ["sums"] * 2
    # The traces that waited for the fiftieth one were written at shutdown.
    assert len(read_traces(tmp_path / "trace.json.1")) == 1


# The settings.


@pytest.fixture(params=[http_client, grpc_client], ids=["http", "grpc"])
def client(request: pytest.FixtureRequest, traced: FileServer) -> Iterator[Any]:
    module: ModuleType = request.param
    with module.InferenceServerClient(
        traced.server.http if module is http_client else traced.server.grpc
    ) as one:
        yield one


def shown(settings: Any) -> dict[str, Any]:
    """Returns the settings in the same format for both protocols."""
    if isinstance(settings, dict):
        return {
            name: value if isinstance(value, list) else [value] for name, value in settings.items()
        }
    return {name: list(setting.value) for name, setting in settings.settings.items()}


class TestSettings:
    def test_change_and_clear(self, client: Any, traced: FileServer) -> None:
        before = shown(client.get_trace_settings())
        assert before["trace_level"] == ["TIMESTAMPS", "TENSORS"]
        assert before["trace_mode"] == ["triton"]
        changed = shown(
            client.update_trace_settings(settings={"trace_rate": "5", "trace_level": ["TENSORS"]})
        )
        assert (changed["trace_rate"], changed["trace_level"]) == (["5"], ["TENSORS"])
        assert (
            shown(client.update_trace_settings(settings={"trace_rate": None, "trace_level": None}))
            == before
        )

    def test_changes_the_settings_of_one_model(self, client: Any, traced: FileServer) -> None:
        client.update_trace_settings("sums", {"trace_level": ["OFF"]})
        try:
            assert shown(client.get_trace_settings("sums"))["trace_level"] == ["OFF"]
            assert shown(client.get_trace_settings())["trace_level"] == ["TIMESTAMPS", "TENSORS"]
            infer_sums(traced.server, "not this one")
            infer(traced.server, "caller", fp32("X", 1, 2, 3, 4), request_id="this one")
            assert [trace.model for trace in traced.take()] == ["caller", "sums"]
        finally:
            client.update_trace_settings("sums", {"trace_level": None})

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (
                {"trace_file": "/tmp/other"},
                "trace file location can not be updated through network protocol",
            ),
            ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
            (
                {"trace_rate": "0"},
                "Attempting to set invalid trace setting :sample rate must be non-zero",
            ),
            ({"trace_count": "-2"}, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
            ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
        ],
    )
    @pytest.mark.parametrize("model", [None, "sums"])
    def test_rejects_invalid_settings(
        self, client: Any, settings: dict[str, Any], message: str, model: str | None
    ) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.update_trace_settings(model, settings)
        assert caught.value.message() == message

    def test_rejects_an_unknown_model(self, client: Any) -> None:
        with pytest.raises(InferenceServerException, match="Request for unknown model : nosuch"):
            client.get_trace_settings("nosuch")
        with pytest.raises(InferenceServerException, match="Request for unknown model : nosuch"):
            client.update_trace_settings("nosuch", {"trace_rate": "1"})

    def test_tracing_is_off_by_default(self, main_server: Endpoints) -> None:
        settings = json.loads(main_server.get("/v2/trace/setting")[1])
        assert settings == {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "triton",
        }
        status, body = main_server.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
        assert (status, json.loads(body)["error"]) == (
            400,
            "Attempting to set invalid trace setting :trace file name is not given",
        )


# OpenTelemetry.


class Collector:
    """The process that receives the spans."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.server.otlp_collector"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        assert self.process.stdout is not None
        self.lines: queue.Queue[str] = queue.Queue()
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/v1/traces"
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def take(self, count: int) -> list[dict[str, Any]]:
        return [json.loads(self.lines.get(timeout=20)) for _ in range(count)]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def otel(repositories: Path, collector: Collector) -> Iterator[Server]:
    flags = [
        "mode=opentelemetry",
        f"opentelemetry,url={collector.url}",
        "rate=0",
        "level=TIMESTAMPS",
    ]
    flags += ["opentelemetry,resource=deployment=test", "opentelemetry,bsp_schedule_delay=20"]
    with naiad(
        [str(repositories / "traced")], [f"--trace-config={flag}" for flag in flags]
    ) as server:
        yield server


def by_name(spans: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {span["name"]: span for span in spans}


class TestOpenTelemetry:
    """No request is sampled by rate, only those of sampled clients."""

    def test_http_headers(self, otel: Server, collector: Collector) -> None:
        with http_client.InferenceServerClient(otel.http) as client:
            tensor = http_client.InferInput("ANY", [1], "BYTES")
            tensor.set_data_from_numpy(np.array([b"x"], np.object_))
            headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
            context = json.loads(
                client.infer("context", [tensor], headers=headers).as_numpy("CONTEXT")[0]
            )
        spans = by_name(collector.take(3))
        request, model, compute = spans["InferRequest"], spans["context"], spans["compute"]
        assert {span["trace_id"] for span in spans.values()} == {PARENT_TRACE}
        assert request["parent_id"] == PARENT_SPAN
        assert model["parent_id"] == request["span_id"]
        assert compute["parent_id"] == model["span_id"]
        assert context == {
            "traceparent": f"00-{PARENT_TRACE}-{model['span_id']}-01",
            "tracestate": "vendor=1",
        }
        assert request["events"] == [
            "HTTP_RECV_START",
            "HTTP_RECV_END",
            "INFER_RESPONSE_COMPLETE",
            "HTTP_SEND_START",
            "HTTP_SEND_END",
        ]
        assert compute["events"] == COMPUTE
        assert model["attributes"]["triton.model_name"] == "context"
        assert request["service"]["service.name"] == "triton-inference-server"
        assert request["service"]["deployment"] == "test"
        assert request["duration_ns"] >= model["duration_ns"] >= compute["duration_ns"] > 0

    def test_grpc_metadata(self, otel: Server, collector: Collector) -> None:
        with grpc_client.InferenceServerClient(otel.grpc) as client:
            client.infer("sums", grpc_sums(), request_id="g", headers={"traceparent": TRACEPARENT})
        spans = by_name(collector.take(3))
        assert spans["InferRequest"]["parent_id"] == PARENT_SPAN
        assert spans["InferRequest"]["events"][:2] == ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
        assert spans["sums"]["attributes"]["triton.request_id"] == "g"

    def test_an_ensemble(self, otel: Server, collector: Collector) -> None:
        self.infer_traced(otel, "pipeline", fp32("A", 1, 2, 3, 4), fp32("B", 1, 1, 1, 1))
        spans = collector.take(6)
        outer = by_name(spans)["pipeline"]
        assert [span["parent_id"] for span in spans if span["name"] == "sums"] == [
            outer["span_id"]
        ] * 2
        assert sum(span["name"] == "compute" for span in spans) == 2

    def test_a_call_of_a_model(self, otel: Server, collector: Collector) -> None:
        self.infer_traced(otel, "caller", fp32("X", 1, 2, 3, 4))
        spans = by_name(collector.take(5))
        assert spans["sums"]["parent_id"] == spans["caller"]["span_id"]
        assert (
            spans["sums"]["attributes"]["triton.trace_parent_id"]
            == spans["caller"]["attributes"]["triton.trace_id"]
        )

    def test_does_not_trace_requests_of_clients_that_were_not_sampled(
        self, otel: Server, collector: Collector
    ) -> None:
        infer_sums(otel)
        self.infer_traced(
            otel,
            "sums",
            fp32("INPUT0", 1, 2, 3, 4),
            fp32("INPUT1", 1, 1, 1, 1),
            parent=TRACEPARENT[:-2] + "00",
        )
        self.infer_traced(
            otel, "context", {"name": "ANY", "datatype": "BYTES", "shape": [1], "data": ["x"]}
        )
        assert by_name(collector.take(3)).keys() == {"InferRequest", "context", "compute"}

    def infer_traced(
        self, server: Server, model: str, *inputs: dict[str, Any], parent: str = TRACEPARENT
    ) -> None:
        body = json.dumps({"inputs": list(inputs)}).encode()
        request = urllib.request.Request(
            f"http://{server.http}/v2/models/{model}/infer", body, {"traceparent": parent}
        )
        assert server.fetch(request)[0] == 200

    def test_the_settings(self, otel: Server, collector: Collector) -> None:
        settings = json.loads(otel.get("/v2/trace/setting")[1])
        assert settings["trace_mode"] == "opentelemetry"
        assert settings["url"] == collector.url
        assert "trace_file" not in settings


def test_sends_the_last_spans_at_shutdown(repositories: Path) -> None:
    collector = Collector()
    try:
        flags = [
            "mode=opentelemetry",
            f"opentelemetry,url={collector.url}",
            "rate=1",
            "level=TIMESTAMPS",
        ]
        with naiad(
            [str(repositories / "traced")], [f"--trace-config={flag}" for flag in flags]
        ) as server:
            infer_sums(server)
        assert by_name(collector.take(3)).keys() == {"InferRequest", "sums", "compute"}
    finally:
        collector.stop()


def test_a_missing_collector_does_not_disturb_the_server(repositories: Path) -> None:
    flags = [
        "mode=opentelemetry",
        "opentelemetry,url=http://127.0.0.1:9/v1/traces",
        "rate=1",
        "level=TIMESTAMPS",
    ]
    flags += ["opentelemetry,bsp_schedule_delay=10"]
    with naiad(
        [str(repositories / "traced")], [f"--trace-config={flag}" for flag in flags]
    ) as server:
        for _ in range(20):
            infer_sums(server)
        assert server.is_ready()


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("rate=-5", "--trace-config rate expects a number from 0 to 4294967295, got: -5"),
        ("triton,nosuch=1", "--trace-config: there is no setting 'nosuch' of mode 'triton'"),
    ],
)
def test_rejects_wrong_options_at_start(repositories: Path, flag: str, message: str) -> None:
    server = launch_naiad([str(repositories / "traced")], [f"--trace-config={flag}"])
    try:
        assert server.wait_exit(30) == 1
    finally:
        server.stop()
    assert any(message in line for line in server.lines)
