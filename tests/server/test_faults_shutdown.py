"""SIGTERM while connections of all kinds are open: the server exits with 0 in time, and finalize()
of its models has run. SIGHUP does not end the server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.transport.http2.frame import DATA, END_STREAM, PREFACE, SETTINGS
from tests.attacks.slow import frame, headers
from tests.server.gates import Gate, Report, call_gate, eventually, number
from tests.server.harness import Server, launch_naiad, process_tree, wait_gone
from tests.server.model_folder import write_model

EXIT_TIMEOUT_S = 20
MUCH_LESS_S = 12
FINALIZE = "pass\n\n    def finalize(self):\n        open(r'{path}', 'w').close()"
SERVICE = "/inference.GRPCInferenceService/"
DRIP_INTERVAL_S = 0.02


class Running:
    """A server with a model that notes its finalize(), and connections that stay open."""

    def __init__(self, repositories: Path, folder: Path, *flags: str) -> None:
        self.finalized = folder / "finalized"
        own = folder / "repository"
        write_model(own, "notes", initialize=FINALIZE.format(path=self.finalized))
        self.folder = folder
        self.server: Server = launch_naiad(
            [str(repositories / "gates"), str(own)],
            [f"--exit-timeout-secs={EXIT_TIMEOUT_S}", *flags],
        ).wait_started()
        self.sockets: list[socket.socket] = []
        self.is_closed = threading.Event()

    def connect(self, kind: str, data: bytes) -> socket.socket:
        one = socket.create_connection(("127.0.0.1", self.server.port(kind)), timeout=60)
        self.sockets.append(one)
        one.sendall(data)
        return one

    def grpc(self, data: bytes, until: bytes = b"") -> socket.socket:
        """Opens a connection, and returns when the server has read its greeting and sent
        `until`."""
        one = self.connect("grpc", PREFACE + frame(SETTINGS, 0, 0) + data)
        received = b""
        while not received or until not in received:
            part = one.recv(1000)
            assert part, f"the server closed the connection after {received!r}"
            received += part
        return one

    def drip(self, one: socket.socket, data: bytes) -> None:
        """Sends a little all the time, until the connection ends."""

        def send() -> None:
            try:
                while not self.is_closed.wait(DRIP_INTERVAL_S):
                    one.sendall(data)
            except OSError:
                pass  # the server has closed the connection

        threading.Thread(target=send, daemon=True).start()

    def expect_clean_exit(self) -> None:
        pids = process_tree(self.server.pid)
        start_s = time.monotonic()
        self.server.signal(signal.SIGTERM)
        assert self.server.wait_exit() == 0, self.server.tail()
        assert time.monotonic() - start_s < MUCH_LESS_S
        assert self.finalized.exists()
        assert not wait_gone(pids)

    def close(self) -> None:
        self.is_closed.set()
        for one in self.sockets:
            one.close()
        if self.server.process.poll() is None:
            self.server.signal(signal.SIGKILL)
        self.server.stop()


def idle_keep_alive(running: Running) -> None:
    one = running.connect("http", b"GET /v2/health/live HTTP/1.1\r\n\r\n")
    assert one.recv(1000).startswith(b"HTTP/1.1 200 ")


def half_a_head(running: Running) -> None:
    running.connect("http", b"POST /v2/models/gate/infer HTTP/1.1\r\nHost:")


def half_a_body(running: Running) -> None:
    running.connect("http", b"POST /v2/models/gate/infer HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")


def slow_upload(running: Running) -> None:
    head = b"POST /v2/models/gate/infer HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
    running.drip(running.connect("http", head), b" ")


def console_events(running: Running) -> None:
    one = running.connect("http", b"GET /console/api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received = b""
    while b"event: state" not in received:
        part = one.recv(1000)
        assert part, received
        received += part


def no_calls(running: Running) -> None:
    running.grpc(b"")


def idle_stream(running: Running) -> None:
    running.grpc(headers(SERVICE + "ModelStreamInfer", 1))


def watch(running: Running) -> None:
    serving = b"\0\0\0\0\x02\x08\x01"
    running.grpc(
        headers("/grpc.health.v1.Health/Watch", 1) + frame(DATA, END_STREAM, 1, bytes(5)), serving
    )


def reflection(running: Running) -> None:
    running.grpc(headers("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", 1))


def half_a_message(running: Running) -> None:
    running.grpc(headers(SERVICE + "ModelInfer", 1) + frame(DATA, 0, 1, b"\0\0\0\0\x09abc"))


def slow_message(running: Running) -> None:
    one = running.grpc(headers(SERVICE + "ModelInfer", 1) + frame(DATA, 0, 1, b"\0\0\x10\0\0"))
    running.drip(one, frame(DATA, 0, 1, b"x"))


def half_a_frame(running: Running) -> None:
    running.grpc(
        headers(SERVICE + "ModelInfer", 1) + frame(DATA, 0, 1, b"\0\0\0\0\x09abc" + bytes(90))[:20]
    )


def headers_without_end(running: Running) -> None:
    running.grpc(headers(SERVICE + "ModelInfer", 1, 0))


KINDS: list[Callable[[Running], None]] = [
    idle_keep_alive,
    half_a_head,
    half_a_body,
    slow_upload,
    console_events,
    no_calls,
    idle_stream,
    watch,
    reflection,
    half_a_message,
    slow_message,
    half_a_frame,
    headers_without_end,
]


@pytest.mark.parametrize("frontends", [1, 2])
def test_all_kinds_of_connections_and_a_running_inference(
    repositories: Path, tmp_path: Path, frontends: int
) -> None:
    running = Running(repositories, tmp_path, f"--frontend-processes={frontends}")
    try:
        gate = Gate(running.folder)
        call = call_gate(running.server, gate)
        gate.wait_entered()
        for kind in KINDS:
            kind(running)
        pids = process_tree(running.server.pid)
        running.server.signal(signal.SIGTERM)
        running.server.wait_for_line("Waiting for in-flight requests to complete")
        gate.open()
        assert number(call.response()) == 1
        assert running.server.wait_exit(MUCH_LESS_S) == 0, running.server.tail()
        assert running.finalized.exists()
        assert not wait_gone(pids)
    finally:
        running.close()


@pytest.mark.parametrize("frontends", [1, 2])
def test_connections_without_a_request_end_at_once(
    repositories: Path, tmp_path: Path, frontends: int
) -> None:
    """Nothing runs, so nothing is waited for."""
    running = Running(repositories, tmp_path, f"--frontend-processes={frontends}")
    try:
        for kind in KINDS:
            kind(running)
        running.expect_clean_exit()
    finally:
        running.close()


def read_to_end(one: socket.socket, received: bytearray) -> None:
    while part := one.recv(65536):
        received += part


@pytest.mark.parametrize("frontends", [1, 2])
def test_streams_without_end_are_cancelled_in_time(
    repositories: Path, tmp_path: Path, frontends: int
) -> None:
    """The models send responses for ever, and stop when their requests are cancelled. The gRPC
    client opens no window, so its model waits in the middle of a response."""
    copy = tmp_path / "repository" / "endless_grpc"
    shutil.copytree(repositories / "gates" / "endless", copy)
    config = (copy / "config.pbtxt").read_text()
    (copy / "config.pbtxt").write_text(config.replace('"endless"', '"endless_grpc"'))
    running = Running(
        repositories, tmp_path, "--exit-timeout-secs=4", f"--frontend-processes={frontends}"
    )
    reports = [Report(tmp_path, name) for name in ("events", "grpc")]
    try:
        body = json.dumps({"BEGUN": str(reports[0].path)}).encode()
        one = running.connect(
            "http",
            b"POST /v2/models/endless/generate_stream HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body),
        )
        assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
        path = str(reports[1].path).encode()
        request = ModelInferRequest(model_name="endless_grpc")
        request.inputs.add(name="BEGUN", datatype="BYTES", shape=[1])
        request.raw_input_contents.append(struct.pack("<I", len(path)) + path)
        message = request.SerializeToString()
        data = frame(DATA, 0, 1, struct.pack(">BI", 0, len(message)) + message)
        running.grpc(headers(SERVICE + "ModelStreamInfer", 1) + data, b"NUMBER")
        events = bytearray()
        reader = threading.Thread(target=read_to_end, args=(one, events))
        reader.start()
        running.expect_clean_exit()
        reader.join(60)
        assert b'data: {"error":"the server is shutting down"}' in events[-1000:]
        assert events.endswith(b"0\r\n\r\n")
        assert [report.read() for report in reports] == 2 * [b"begun cancelled"]
    finally:
        for report in reports:
            report.close()
        running.close()


def test_a_stuck_model_does_not_keep_the_others_from_finalizing(
    repositories: Path, tmp_path: Path
) -> None:
    running = Running(repositories, tmp_path, "--exit-timeout-secs=2")
    try:
        gate = Gate(tmp_path)
        call = call_gate(running.server, gate)
        gate.wait_entered()
        running.server.signal(signal.SIGTERM)
        assert running.server.wait_exit() != 0
        assert running.finalized.exists()
        call.disconnect()
    finally:
        running.close()


def test_sighup_does_not_end_the_server_and_reopens_the_log(
    repositories: Path, tmp_path: Path
) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    server = launch_naiad([str(repositories / "gates")], [f"--log-file={path}"])
    try:
        eventually(lambda: path.exists() and "HTTPService" in path.read_text(), "started")
        path.rename(moved)
        for pid in process_tree(server.pid):
            os.kill(pid, signal.SIGHUP)
        eventually(path.exists, "the log is written to a new file")
        assert number(call_gate(server, None).response()) == 1
        assert server.is_ready()
        assert "reading the log file again" in moved.read_text() + path.read_text()
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert "Waiting for in-flight requests" in path.read_text()
    finally:
        if server.process.poll() is None:
            server.signal(signal.SIGKILL)
        server.stop()
