"""A request that is refused or lost ends its sequence, wherever that happens: with a gap, later
requests would be answered with wrong numbers. The matrix of `make sequences` in short, too."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import itertools
import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from naiad.keys import key_change
from naiad.keys.api_class import SCOPES
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile
from naiad.pb import grpc_service_pb2 as pb
from tests.attacks.sequences import CLIENTS, LAYOUTS, Door, run_clients, served, write_sums
from tests.server.gates import eventually, in_thread
from tests.server.harness import Server, frontends, naiad
from tests.server.model_folder import write_model
from tests.server.router_fleet import Fleet

MODEL = "onnx_oldest"
NUMBERS = itertools.count(1)
PATH = f"/v2/models/{MODEL}/infer"
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
START = "must specify the START flag on the first request of the sequence"
MAX_BYTES, FULL_BYTES, BUDGET_BYTES = 700_000, 600_000, 1 << 20
"""Messages between the two fit no connection's part of the memory budget."""
FLAGS = [
    f"--http-max-input-size={MAX_BYTES}",
    f"--grpc-max-message-size={MAX_BYTES}",
    f"--request-memory-byte-size={BUDGET_BYTES}",
]


class Site(NamedTuple):
    """A server, and clients with a key of one request at a time."""

    server: Server
    door: Door
    key: str
    hold: Callable[[], contextlib.AbstractContextManager[None]]

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)

    def post(self, body: bytes, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.door.http_port, timeout=60)
        with contextlib.closing(connection):
            more = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", PATH, body, {**self.headers, **more})
            response = connection.getresponse()
            return response.status, response.read().decode()

    def at_server(self, message: bytes) -> str:
        """Like `call`, past the router."""
        return self._call(self.server.grpc, message)

    def call(self, message: bytes, **fields: object) -> str:
        """The status and the text; empty for success."""
        return self._call(self.door.grpc, message, **fields)

    def _call(self, address: str, message: bytes, **fields: object) -> str:
        with grpc.insecure_channel(address) as channel:
            try:
                channel.unary_unary(INFER, None, None)(
                    message,
                    metadata=self.metadata,
                    **{"timeout": 60, **fields},
                )
            except grpc.RpcError as error:
                return f"{error.code().name} {error.details()}"
            return ""


def json_chunk(sequence: int, padding: int = 0, **more: object) -> bytes:
    """The parameters come last, as tritonclient writes them."""
    return json.dumps(
        {
            "id": "x" * padding,
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
            "parameters": {"sequence_id": sequence, "sequence_start": False, **more},
        }
    ).encode()


def chunk(
    sequence: int, padding: int = 0, *, start: bool = False, end: bool = False, shape: int = 1
) -> bytes:
    request = pb.ModelInferRequest(model_name=MODEL, id="id")
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = start
    request.parameters["sequence_end"].bool_param = end
    request.inputs.add(name="x", datatype="FP32", shape=[1, shape])
    request.raw_input_contents.append(bytes(4 * shape + padding))
    return request.SerializeToString()


def refuse_http(site: Site, status: int, body: bytes, **headers: str) -> None:
    found, text = site.post(body, **headers)
    assert found == status, text


def over_a_limit(site: Site, send: Callable[[], object]) -> None:
    """The key has one request in flight already."""
    with site.hold():
        send()


def leave_in_the_body(site: Site, sequence: int) -> None:
    body = json_chunk(sequence)
    head = f"POST {PATH} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {site.key}\r\n"
    with socket.create_connection(("127.0.0.1", site.door.http_port)) as client:
        client.sendall(f"{head}content-length: {len(body) + 9}\r\n\r\n".encode() + body)


def stream_of(
    site: Site, *messages: bytes, is_lost: bool = False
) -> list[pb.ModelStreamInferResponse]:
    """Sends the messages, and returns as many responses. `is_lost`: the stream breaks off."""
    channel = grpc.insecure_channel(site.door.grpc)
    call = channel.stream_stream(STREAM, None, pb.ModelStreamInferResponse.FromString)(
        iter(messages) if not is_lost else endless(messages), metadata=site.metadata, timeout=60
    )
    responses = [next(call) for _ in messages]
    if is_lost:
        call.cancel()
    channel.close()
    return responses


def endless(messages: tuple[bytes, ...]) -> Iterator[bytes]:
    """The client neither sends more nor ends the stream."""
    yield from messages
    threading.Event().wait(60)


def stream_with_no_message(site: Site, sequence: int) -> None:
    with pytest.raises(grpc.RpcError):
        stream_of(site, chunk(sequence), b"\xff\xff\xff")


def refuse_on_a_stream(site: Site, message: bytes) -> None:
    (response,) = stream_of(site, message)
    assert response.error_message


PLACES: dict[str, Callable[[Site, int], object]] = {
    "http, not JSON": lambda s, n: refuse_http(s, 500, json_chunk(n).replace(b"[1]", b"[oops]")),
    "http, shape": lambda s, n: refuse_http(s, 400, json_chunk(n).replace(b"[1, 1]", b"[1, 2]")),
    "http, binary": lambda s, n: refuse_http(
        s, 400, json_chunk(n) + b"12", inference_header_content_length=str(len(json_chunk(n)))
    ),
    "http, too large": lambda s, n: refuse_http(s, 400, json_chunk(n, MAX_BYTES)),
    "http, memory": lambda s, n: refuse_http(s, 503, json_chunk(n, FULL_BYTES)),
    "http, encoding": lambda s, n: refuse_http(
        s, 501, gzip.compress(json_chunk(n)), content_encoding="br"
    ),
    "http, broken gzip": lambda s, n: refuse_http(
        s, 400, gzip.compress(json_chunk(n, 9))[:-4] + b"none", content_encoding="gzip"
    ),
    "http, key": lambda s, n: over_a_limit(s, lambda: refuse_http(s, 429, json_chunk(n))),
    "http, leaves": leave_in_the_body,
    "call, shape": lambda s, n: _refused(s.call(chunk(n, shape=2)), "INVALID_ARGUMENT"),
    "call, too large": lambda s, n: _refused(s.call(chunk(n, MAX_BYTES)), "RESOURCE_EXHAUSTED"),
    "call, memory": lambda s, n: _refused(s.call(chunk(n, FULL_BYTES)), "RESOURCE_EXHAUSTED"),
    "call, gzip too large": lambda s, n: _refused(
        s.call(chunk(n, 4 * MAX_BYTES), compression=grpc.Compression.Gzip), "RESOURCE_EXHAUSTED"
    ),
    "call, key": lambda s, n: over_a_limit(
        s, lambda: _refused(s.call(chunk(n)), "RESOURCE_EXHAUSTED")
    ),
    "stream, shape": lambda s, n: refuse_on_a_stream(s, chunk(n, shape=2)),
    "stream, key": lambda s, n: over_a_limit(s, lambda: refuse_on_a_stream(s, chunk(n))),
    "stream, not a message": stream_with_no_message,
    "stream, leaves": lambda s, n: stream_of(s, chunk(n), is_lost=True),
}


def _refused(text: str, status: str) -> None:
    assert text.startswith(status), text


@pytest.fixture(scope="module", params=["one process", "frontends", "router"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("lost")
    repository = write_sums(folder / "models")
    gate, entered = folder / "gate", folder / "entered"
    waits = f"[time.sleep(0.005) for _ in iter(lambda: os.path.exists({str(gate)!r}), False)]"
    write_model(repository, "held", execute=f"open({str(entered)!r}, 'w').close(); {waits}")
    issued = key_change.create(
        KeyDocument(), NewKey(name="one", scopes=SCOPES, max_parallel_requests=1), utc_now()
    )
    KeyFile(folder / "keys.json").change(lambda _: issued.document)
    keys = [f"--api-key-file={folder / 'keys.json'}"]

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        gate.touch()
        inputs = [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [1]}]
        request = urllib.request.Request(
            f"http://{door.http}/v2/models/held/infer",
            json.dumps({"inputs": inputs}).encode(),
            {"authorization": f"Bearer {issued.token}"},
        )
        call = in_thread(lambda: door.fetch(request))
        eventually(entered.exists, "the request is in flight")
        try:
            yield
        finally:
            gate.unlink()
            assert call.result()[0] == 200
            entered.unlink()

    if request.param == "router":
        one = Fleet(repository)
        try:
            server = one.start("a", flags=FLAGS)
            door = one.route(one.flag("a"), *keys)
            door.wait_for_line("replica 'a' is ready")
            yield Site(server, Door(door.http_port, door.grpc), issued.token, hold)
        finally:
            one.stop()
        return
    count = 2 if request.param == "frontends" else 0
    flags = [*FLAGS, *keys, f"--frontend-processes={count}"]
    with naiad([str(repository)], flags) as server:
        eventually(lambda: len(frontends(server)) == count, "all frontends run")
        door = server
        yield Site(server, Door(server.http_port, server.grpc), issued.token, hold)


@pytest.mark.parametrize("place", list(PLACES))
def test_every_place_that_refuses_or_loses_a_request_ends_its_sequence(
    site: Site, place: str
) -> None:
    number, other = next(NUMBERS), next(NUMBERS)
    for sequence in (number, other):
        assert site.call(chunk(sequence, start=True)) == ""
        assert site.call(chunk(sequence)) == ""
    PLACES[place](site, number)
    # A client that has left is noticed soon after, and its key is free again then.
    eventually(lambda: START in site.at_server(chunk(number)), "the sequence has ended")
    late = site.call(chunk(number))
    assert START in late or "start the sequence again" in late
    assert site.call(chunk(other, end=True)) == "", "the others go on"
    assert site.call(chunk(number, start=True)) == ""
    assert site.call(chunk(number, end=True)) == ""


def test_a_frontend_process_that_dies_takes_its_sequences_along(tmp_path: Path) -> None:
    with naiad([str(write_sums(tmp_path / "models"))], ["--frontend-processes=2"]) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        with grpc.insecure_channel(server.grpc) as channel:
            ask = channel.unary_unary(INFER, None, None)
            ask(chunk(1, start=True), timeout=60)
            for pid in frontends(server):
                os.kill(pid, signal.SIGKILL)

            def has_ended() -> bool:
                try:
                    ask(chunk(1), timeout=60)
                except grpc.RpcError as error:
                    return START in str(error.details())
                return False

            eventually(has_ended, "the sequence has ended")


def test_the_router_does_not_go_on_with_a_sequence_whose_replica_was_away(tmp_path: Path) -> None:
    repository = write_sums(tmp_path / "models")
    one = Fleet(repository)
    try:
        one.start("a")
        one.route(one.flag("a"))
        one.wait_ready("a")
        url = f"/v2/models/{MODEL}/infer"
        assert one.router.post(url, json_chunk(1, sequence_start=True))[0] == 200
        os.killpg(one.servers["a"].pid, signal.SIGSTOP)
        eventually(lambda: one.replicas()["a"]["state"] != "ready", "the replica is away")
        for _ in range(2):
            status, text = one.router.post(url, json_chunk(1))
            assert (status, json.loads(text)["error"]) == (
                503,
                "the replica that had the sequence is gone, start it again",
            )
        os.killpg(one.servers["a"].pid, signal.SIGCONT)
        one.wait_ready("a")
        assert one.router.post(url, json_chunk(1))[0] == 503
        assert one.router.post(url, json_chunk(1, sequence_start=True))[0] == 200
        assert one.router.post(url, json_chunk(1))[0] == 200
    finally:
        one.stop()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_running_sums_are_right_in_short(tmp_path: Path, layout: str) -> None:
    folder = write_sums(tmp_path / "models")
    with served(folder, layout, ["--max-queue-size=8"]) as (door, _):
        for model in ("onnx_direct", "python_oldest"):
            for clients in CLIENTS:
                outcome = asyncio.run(run_clients(door, model, clients, 8, 40))
                assert not outcome.wrong
                assert outcome.num_right == 320, outcome.line()
