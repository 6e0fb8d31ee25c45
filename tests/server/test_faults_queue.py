"""Queues that are full, time out, or reorder requests. Gates hold the models, so no test depends on
speed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.gates import Gate, call_gate, eventually, number, pending
from tests.server.harness import Server, naiad


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    with naiad([str(repositories / "gates")]) as one:
        yield one


def test_a_full_queue_responds_503_with_retry_after(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    running = call_gate(server, gate)
    gate.wait_entered()
    waiting = [call_gate(server, None) for _ in range(3)]
    eventually(lambda: pending(server, "gate") == 3, "three requests wait")
    status, headers, body = call_gate(server, None).response()
    assert (status, body["error"].endswith("Exceeds maximum queue size")) == (503, True)
    assert int(headers["Retry-After"]) >= 0
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name="GO", datatype="BYTES", shape=[1, 1]
        )
        message = service_pb2.ModelInferRequest(
            model_name="gate", inputs=[tensor], raw_input_contents=[bytes(4)]
        )
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(message, timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not any(call.has_response() for call in waiting)
    gate.open()
    assert number(running.response()) == 1
    assert [number(call.response()) for call in waiting] == [3, 3, 3]


def test_serves_after_the_queue_was_full(server: Server) -> None:
    assert number(call_gate(server, None).response()) == 1
    assert pending(server, "gate") == 0


def test_a_request_times_out_while_the_instance_is_busy(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    running = call_gate(server, gate, "gate_timeout")
    gate.wait_entered()
    status, _, body = call_gate(server, None, "gate_timeout").response()
    assert (status, body["error"].endswith("Request timeout expired")) == (503, True)
    assert not running.has_response()
    gate.open()
    assert number(running.response()) == 1


def test_a_request_can_set_a_shorter_timeout(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    running = call_gate(server, gate)
    gate.wait_entered()
    hurried, patient = call_gate(server, None, timeout=1000), call_gate(server, None)
    status, _, body = hurried.response()
    assert (status, body["error"].endswith("Request timeout expired")) == (503, True)
    assert not patient.has_response()
    gate.open()
    assert number(running.response()) == 1
    assert number(patient.response()) == 1


def test_waiting_requests_are_executed_together(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    running = call_gate(server, gate)
    gate.wait_entered()
    others = [call_gate(server, None) for _ in range(3)]
    eventually(lambda: pending(server, "gate") == 3, "three requests wait")
    gate.open()
    assert number(running.response()) == 1
    assert [number(call.response()) for call in others] == [3, 3, 3]


def test_a_batch_waits_for_its_preferred_size(server: Server) -> None:
    first = [call_gate(server, None, "gate_delay") for _ in range(3)]
    eventually(lambda: pending(server, "gate_delay") == 3, "three requests wait for a fourth")
    assert not any(call.has_response() for call in first)
    last = call_gate(server, None, "gate_delay")
    assert [number(call.response()) for call in [*first, last]] == [4, 4, 4, 4]


def _is_pending(server: Server, count: int) -> bool:
    return pending(server, "gate_priority") == count


def test_executes_requests_in_the_order_of_priorities(server: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    running = call_gate(server, gate, "gate_priority")
    gate.wait_entered()
    gates = {priority: Gate(tmp_path) for priority in (3, 0, 1)}
    calls = []
    for count, (priority, one) in enumerate(gates.items(), 1):
        calls.append(call_gate(server, one, "gate_priority", priority=priority))
        eventually(partial(_is_pending, server, count), f"{count} requests wait")
    gate.open()
    for priority in (1, 0, 3):
        gates[priority].wait_entered()
        assert not any(other.is_waited_at() for level, other in gates.items() if level != priority)
        gates[priority].open()
    assert [number(call.response()) for call in [running, *calls]] == [1, 1, 1, 1]


def test_two_instances_execute_concurrently(server: Server, tmp_path: Path) -> None:
    gates = [Gate(tmp_path), Gate(tmp_path)]
    calls = [call_gate(server, gate, "gate_plain") for gate in gates]
    for gate in gates:
        gate.wait_entered()
    for gate, call in zip(gates, calls, strict=True):
        gate.open()
        assert number(call.response()) == 1


def test_async_execute_accepts_requests_while_it_waits(server: Server, tmp_path: Path) -> None:
    gates = [Gate(tmp_path), Gate(tmp_path)]
    calls = [call_gate(server, gate, "gate_async") for gate in gates]
    for gate in gates:
        gate.wait_entered()
    assert number(call_gate(server, None, "gate_async").response()) == 3
    for gate in gates:
        gate.open()
    assert sorted(number(call.response()) for call in calls) in ([1, 2], [2, 2])
