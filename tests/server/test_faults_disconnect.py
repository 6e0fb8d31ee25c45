"""Clients that disconnect: their queued and running requests are cancelled on every transport, and
other clients are not affected."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as grpc_client
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.client_data import text_input
from tests.server.gates import Gate, HttpCall, Report, call_gate, eventually, number, pending, text
from tests.server.harness import Server, naiad


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    with naiad([str(repositories / "gates")]) as one:
        yield one


@pytest.fixture
def report(tmp_path: Path) -> Iterator[Report]:
    one = Report(tmp_path)
    yield one
    one.close()


def begun_message(model: str, report: Report) -> Any:
    path = str(report.path).encode()
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name="BEGUN", datatype="BYTES", shape=[1]
    )
    return service_pb2.ModelInferRequest(
        model_name=model,
        inputs=[tensor],
        raw_input_contents=[len(path).to_bytes(4, "little") + path],
    )


def assert_still_serving(server: Server) -> None:
    assert number(call_gate(server, None).response()) == 1


def test_http_disconnect_cancels_a_running_request(server: Server, report: Report) -> None:
    call = HttpCall(
        server,
        "/v2/models/until_cancelled/infer",
        {"inputs": [text("BEGUN", str(report.path), is_batched=False)]},
    )
    assert report.read(until=b"begun") == b"begun"
    call.disconnect()
    assert report.read() == b" cancelled"
    assert_still_serving(server)


def test_http_reset_cancels_a_running_request(server: Server, report: Report) -> None:
    call = HttpCall(
        server,
        "/v2/models/until_cancelled/infer",
        {"inputs": [text("BEGUN", str(report.path), is_batched=False)]},
    )
    assert report.read(until=b"begun") == b"begun"
    call.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    call.disconnect()
    assert report.read() == b" cancelled"


def test_http_disconnect_removes_a_queued_request(server: Server, tmp_path: Path) -> None:
    first, never = Gate(tmp_path), Gate(tmp_path)
    running = call_gate(server, first)
    first.wait_entered()
    queued = call_gate(server, never)
    eventually(lambda: pending(server, "gate") == 1, "a request waits")
    queued.disconnect()
    eventually(lambda: pending(server, "gate") == 0, "the request has left the queue")
    first.open()
    assert number(running.response()) == 1
    assert number(call_gate(server, None).response()) == 1
    assert not never.is_waited_at()


def test_grpc_cancellation_cancels_a_running_request(server: Server, report: Report) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(
            begun_message("until_cancelled", report)
        )
        assert report.read(until=b"begun") == b"begun"
        call.cancel()
        assert report.read() == b" cancelled"


def test_grpc_deadline_cancels_a_running_request(server: Server, tmp_path: Path) -> None:
    """Retries with a longer deadline if the time was up before the model has started."""
    reports: list[Report] = []
    with grpc.insecure_channel(server.grpc) as channel:
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        for timeout_s in (0.5, 2, 8, 32):
            reports.append(Report(tmp_path))
            with pytest.raises(grpc.RpcError) as caught:
                infer(begun_message("until_cancelled", reports[-1]), timeout=timeout_s)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if reports[-1].has_output():
                break
    assert reports[-1].read() == b"begun cancelled"
    for report in reports:
        report.close()


def test_grpc_disconnect_cancels_a_running_request(server: Server, report: Report) -> None:
    channel = grpc.insecure_channel(server.grpc)
    call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer.future(
        begun_message("until_cancelled", report)
    )
    assert report.read(until=b"begun") == b"begun"
    channel.close()
    assert report.read() == b" cancelled"
    assert call.done()


def test_closing_an_event_stream_cancels_the_model(server: Server, report: Report) -> None:
    call = HttpCall(server, "/v2/models/endless/generate_stream", {"BEGUN": str(report.path)})
    response = call.connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    call.disconnect()
    assert report.read() == b"begun cancelled"


def test_cancelling_a_grpc_stream_cancels_the_model(server: Server, report: Report) -> None:
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: received.put((result, error)))
        client.async_stream_infer("endless", [text_input(grpc_client, "BEGUN", str(report.path))])
        assert received.get(timeout=20)[1] is None
        client.stop_stream(cancel_requests=True)
        assert report.read() == b"begun cancelled"
