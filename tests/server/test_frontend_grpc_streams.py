"""ModelStreamInfer with several frontend processes: clients see what one process would do, and
nothing outlives its client or its frontend."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from naiad.keys import key_change
from naiad.keys.key import utc_now
from naiad.keys.key_file import KeyFile
from naiad.pb import grpc_service_pb2 as pb
from tests.server.gates import Gate, Report, eventually, pending
from tests.server.grpc_stream import StreamCall, message, number
from tests.server.harness import ROOT, Server, frontends, naiad
from tests.server.model_folder import Control, write_model
from tests.server.test_frontend_keys import Ring, bearer, key_metrics
from tests.server.trace_reading import read_traces

REPOSITORIES = ROOT / "tests" / "repositories"
SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."
MANY_CONFIG = """backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
MANY_MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """COUNT numbers; a negative COUNT has an error in place of every second one."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            for index in range(abs(count)):
                tensor = pb_utils.Tensor("NUMBER", np.array([index], np.int32))
                response = pb_utils.InferenceResponse([tensor])
                if count < 0 and index % 2:
                    error = pb_utils.TritonError(f"no number {index}")
                    response = pb_utils.InferenceResponse(error=error)
                sender.send(response)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''
SUM_CONFIG = """backend: "python"
max_batch_size: 4
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 100000000
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
SUM_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self.add(request) for request in requests]

    def add(self, request):
        def read(name):
            return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])

        # Empty slots of the batch have the correlation id 0.
        before = 0 if read("START") else self.sums.get(read("CORRID"), 0)
        self.sums[read("CORRID")] = before + read("X")
        output = np.array([[before + read("X")]], np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", output)])
"""
FAILS = """raise RuntimeError("cannot do that")"""


def write_models(folder: Path) -> None:
    for name in ("word", "other"):
        write_model(folder, name, name)
    write_model(folder, "fails", execute=FAILS)
    for name, config, model in (
        ("many", MANY_CONFIG, MANY_MODEL),
        ("sum", SUM_CONFIG, SUM_MODEL),
    ):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(config)
        (folder / name / "1" / "model.py").write_text(model)


NAMES = ("word", "other", "fails", "many", "sum", "identity_fp32", "gate_plain", "endless")


def flags(num_processes: int, *more: str) -> list[str]:
    loaded = [f"--load-model={name}" for name in NAMES]
    return [
        f"--frontend-processes={num_processes}",
        "--model-control-mode=explicit",
        *loaded,
        *more,
    ]


def repositories(folder: Path) -> list[str]:
    return [str(folder), str(REPOSITORIES / "main"), str(REPOSITORIES / "gates")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[Server]:
    with naiad(repositories(folder), flags(1)) as server:
        yield server


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[Server]:
    with naiad(repositories(folder), flags(2)) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        yield server


# One process and two frontends.


def word(id: str = "", model: str = "word", **fields: Any) -> pb.ModelInferRequest:
    return message(model, id, ANY=number(0), **fields)


def many(count: int, id: str = "", *, empty_final: bool = False) -> pb.ModelInferRequest:
    parameters: dict[str, bool | int] = {"triton_enable_empty_final_response": empty_final}
    return message("many", id, COUNT=number(count), parameters=parameters if empty_final else None)


def step(value: int, *, start: bool = False, end: bool = False, id: int = 7) -> Any:
    parameters: dict[str, bool | int] = {"sequence_id": id}
    if start:
        parameters["sequence_start"] = True
    if end:
        parameters["sequence_end"] = True
    return message("sum", X=np.array([[value]], np.int32), parameters=parameters)


def without_data(model: str, id: str) -> pb.ModelInferRequest:
    request = message(model, id, ANY=number(0))
    request.raw_input_contents.append(b"more")
    return request


def wanting(output: str) -> pb.ModelInferRequest:
    request = word("wanting")
    request.outputs.add(name=output)
    return request


LARGE = np.arange(1 << 18, dtype=np.float32)
CLOSING = {"triton_grpc_error": "true"}
Conversation = tuple[dict[str, str], list[pb.ModelInferRequest | bytes]]
CONVERSATIONS: dict[str, Conversation] = {
    "plain": ({}, [word("a"), word("b", "other"), word()]),
    "unknown models": (
        {},
        [
            word("a"),
            word("b", "nothing"),
            word("c", version="2"),
            word("d", version="no number"),
            word("e", version="1"),
            word("f", "nothing", version="3"),
        ],
    ),
    "invalid requests": (
        {},
        [
            message("word", "no inputs"),
            message("word", "wrong name", OTHER=number(0)),
            message("word", "wrong type", ANY=np.array([0], np.float32)),
            message("word", "wrong shape", ANY=np.array([0, 1], np.int32)),
            without_data("word", "too much data"),
            without_data("nothing", "too much data for nobody"),
            wanting("WORD"),
            wanting("NOTHING"),
            word("good"),
        ],
    ),
    "no request": ({}, [b"\xff"]),
    "a failing model": ({}, [word("a", "fails"), word("b")]),
    "the first error ends the stream: unknown": (CLOSING, [word("a", "nothing")]),
    "the first error ends the stream: invalid": (CLOSING, [message("word", "a")]),
    "the first error ends the stream: failing": (CLOSING, [word("a", "fails")]),
    "no response": ({}, [many(0, "a"), many(0, "b", empty_final=True)]),
    "many responses": ({}, [many(50, "a")]),
    "many responses and a final one": ({}, [many(50, "a", empty_final=True)]),
    "errors among responses": ({}, [many(-5, "a", empty_final=True)]),
    "an invalid decoupled request": ({}, [message("many", "a", COUNT="text"), many(1, "b")]),
    "a sequence": (
        {},
        [
            step(1, start=True),
            step(2),
            step(3, id=8),
            step(4, start=True, id=8),
            step(5, end=True),
            step(6, end=True, id=8),
            step(7),
        ],
    ),
    "large tensors": (
        {},
        [message("identity_fp32", str(index), INPUT0=LARGE) for index in range(3)],
    ),
}


def shown(response: pb.ModelStreamInferResponse) -> Any:
    """A response without what differs from process to process."""
    inner = response.infer_response
    for index, data in enumerate(inner.raw_output_contents):
        inner.raw_output_contents[index] = re.sub(rb"(?s)^....(word|other) \d+", rb"\1", data)
    return str(response)


def outcomes(server: Server, conversation: Conversation, **options: Any) -> Any:
    metadata, messages = conversation
    with StreamCall(server, metadata, **options) as call:
        call.send(*messages)
        call.half_close()
        return [shown(response) for response in call.rest()], call.status


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_two_frontends_respond_as_one_process_does(one: Server, two: Server, name: str) -> None:
    expected = outcomes(one, CONVERSATIONS[name])
    for _ in range(2):  # once in each frontend
        assert outcomes(two, CONVERSATIONS[name]) == expected
    assert expected[0] or expected[1][0] is not grpc.StatusCode.OK


def test_compressed_messages(one: Server, two: Server) -> None:
    found = [
        outcomes(server, CONVERSATIONS["large tensors"], compression=grpc.Compression.Gzip)
        for server in (one, two)
    ]
    assert found[0] == found[1]


def counts(server: Server, model: str) -> Any:
    """The numbers of the statistics, without times."""
    statistics = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"][0]
    inner = statistics["inference_stats"]
    return (
        statistics["inference_count"],
        {name: inner[name]["count"] for name in ("success", "fail")},
        {
            index: {name: each[name]["count"] for name in ("success", "fail", "empty_response")}
            for index, each in statistics["response_stats"].items()
        },
    )


def test_statistics_are_those_of_one_process(one: Server, two: Server) -> None:
    def added(server: Server) -> Any:
        names = ("word", "fails", "many", "sum")
        before = {name: counts(server, name) for name in names}
        for name in ("plain", "a failing model", "unknown models", "invalid requests"):
            outcomes(server, CONVERSATIONS[name])
        for name in ("many responses", "errors among responses", "no response", "a sequence"):
            outcomes(server, CONVERSATIONS[name])
        found = {}
        for name in names:
            total, groups, responses = counts(server, name)
            was_total, was_groups, was_responses = before[name]
            found[name] = (
                total - was_total,
                {key: value - was_groups[key] for key, value in groups.items()},
                {
                    index: {
                        key: value - was_responses.get(index, {}).get(key, 0)
                        for key, value in each.items()
                    }
                    for index, each in responses.items()
                },
            )
        return found

    # The first call shows every kind of response, whatever the other tests have done.
    for server in (one, two):
        added(server)
    assert added(two) == added(one)


# Clients, and models that come and go.


def test_requests_of_many_streams_are_answered(two: Server) -> None:
    calls = [StreamCall(two) for _ in range(8)]
    for index in range(200):
        for call in calls:
            call.send(word(str(index)))
    for call in calls:
        call.half_close()
    for call in calls:
        ids = [response.infer_response.id for response in call.rest()]
        assert ids == [str(index) for index in range(200)]
        assert call.status[0] is grpc.StatusCode.OK
        call.close()


def test_responses_keep_the_order_of_requests_for_several_models(
    two: Server, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with StreamCall(two) as call:
        call.send(message("gate_plain", "a", GO=str(gate.path)), word("b", "nothing"), word("c"))
        call.send(many(1, "d"))
        gate.wait_entered()
        assert call.read().infer_response.id == "d", "a decoupled model does not wait"
        gate.open()
        assert [call.read().infer_response.id for _ in range(3)] == ["a", "b", "c"]


def test_a_client_that_cancels_ends_its_request(two: Server, tmp_path: Path) -> None:
    report = Report(tmp_path)
    with StreamCall(two) as call:
        call.send(message("endless", BEGUN=str(report.path)))
        assert call.read().infer_response.model_name == "endless"
        call.call.cancel()
        assert report.read().endswith(b" cancelled")
    report.close()


def test_a_client_that_disconnects_ends_its_request(two: Server, tmp_path: Path) -> None:
    report = Report(tmp_path)
    call = StreamCall(two)
    call.send(message("endless", BEGUN=str(report.path)))
    call.read()
    call.close()
    assert report.read().endswith(b" cancelled")
    report.close()


def test_a_deadline_ends_the_requests_of_its_stream(two: Server, tmp_path: Path) -> None:
    report = Report(tmp_path)
    with StreamCall(two, timeout_s=2.0) as call:
        call.send(message("endless", BEGUN=str(report.path)))
        assert report.read().endswith(b" cancelled")
        call.rest()
        assert call.status[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    report.close()


def test_a_client_that_does_not_read_gets_every_response_later(two: Server) -> None:
    count = 100_000
    with StreamCall(two) as slow:
        slow.send(many(count, "slow"))
        slow.half_close()
        for _ in range(20):
            with StreamCall(two) as other:
                assert other.ask(word("a")).infer_response.id == "a"
        numbers = [
            int.from_bytes(response.infer_response.raw_output_contents[0], "little")
            for response in slow.rest()
        ]
        assert numbers == list(range(count))


def test_a_client_that_sends_without_reading_loses_nothing(two: Server) -> None:
    with StreamCall(two) as call:
        for index in range(5000):
            call.send(word(str(index)))
        call.half_close()
        with StreamCall(two) as other:
            assert other.ask(word("a")).infer_response.id == "a"
        assert [response.infer_response.id for response in call.rest()] == [
            str(index) for index in range(5000)
        ]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_unloaded_model_is_unknown_to_open_streams(folder: Path, num_processes: int) -> None:
    with naiad(repositories(folder), flags(num_processes)) as server:
        control = Control(server)
        with StreamCall(server) as call:
            assert not call.ask(word("a")).error_message
            assert control.unload("word") == (200, "")
            for request in (word("b"), message("word", "no inputs")):
                response = call.ask(request)
                assert response.error_message == (
                    "Request for unknown model: 'word' has no available versions"
                )
                assert response.infer_response == pb.ModelInferResponse(id=request.id)
            assert not call.ask(word("c", "other")).error_message
            assert control.load("word") == (200, "")
            assert not call.ask(word("d")).error_message


def test_a_request_in_flight_survives_the_unload_of_its_model(two: Server, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with StreamCall(two) as call:
        call.send(message("gate_plain", "a", GO=str(gate.path)))
        gate.wait_entered()
        assert Control(two).unload("gate_plain") == (200, "")
        assert call.ask(many(1, "b")).infer_response.id == "b"
        gate.open()
        assert call.read().infer_response.id == "a"
    assert Control(two).load("gate_plain") == (200, "")


# Processes that end.


def test_a_killed_frontend_ends_its_streams(two: Server, tmp_path: Path) -> None:
    reports = [Report(tmp_path) for _ in range(2)]
    calls = [StreamCall(two) for _ in reports]
    calls[0].send(message("endless", BEGUN=str(reports[0].path)))
    calls[0].read()
    calls[1].send(message("endless", BEGUN=str(reports[1].path)))  # there is one instance
    eventually(lambda: pending(two, "endless") == 1, "the second request waits")
    killed = frontends(two)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    assert reports[0].read().endswith(b" cancelled")
    for call, report in zip(calls, reports, strict=True):
        call.rest()
        assert call.status[0] is grpc.StatusCode.UNAVAILABLE
        call.close()
        report.close()
    eventually(lambda: pending(two, "endless") == 0, "its requests have left the queue")
    eventually(
        lambda: len(frontends(two)) == 2 and not set(frontends(two)) & set(killed),
        "both are replaced",
    )
    with StreamCall(two) as call:
        assert not call.ask(word()).error_message


@pytest.mark.parametrize("num_processes", [1, 2])
def test_sigterm_ends_idle_streams_and_finishes_requests(
    folder: Path, tmp_path: Path, num_processes: int
) -> None:
    gate = Gate(tmp_path)
    with naiad(repositories(folder), flags(num_processes)) as server:
        with StreamCall(server) as idle, StreamCall(server) as used, StreamCall(server) as busy:
            assert not used.ask(word()).error_message
            idle_end, used_end = idle.status_later(), used.status_later()
            busy.send(message("gate_plain", "a", GO=str(gate.path)))
            gate.wait_entered()
            server.signal(signal.SIGTERM)
            server.wait_for_line("in-flight inferences")
            gate.open()
            assert busy.read().infer_response.id == "a"
            busy.rest()
            for found in (idle_end.result(60), used_end.result(60), busy.status):
                assert found == (grpc.StatusCode.UNAVAILABLE, SHUTTING_DOWN)
        assert server.wait_exit() == 0


# Traces.


def test_open_streams_are_traced_when_traces_are_switched_on(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    options = (f"triton,file={path}", "rate=1")
    write_model(folder, "late", "late")
    with (
        naiad(
            repositories(folder), flags(2, *(f"--trace-config={each}" for each in options))
        ) as server,
        StreamCall(server) as call,
    ):
        assert not call.ask(word("before")).error_message
        assert server.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})[0] == 200
        assert not call.ask(word("after")).error_message
        assert Control(server).load("late") == (200, "")
        assert not call.ask(word("late", "late")).error_message
        with StreamCall(server) as new:
            assert not new.ask(word("new")).error_message
        assert server.post("/v2/trace/setting", {"trace_level": ["OFF"]})[0] == 200
        assert not call.ask(word("last")).error_message
    traces = {trace.request_id: trace for trace in read_traces(path)}
    assert list(traces) == ["after", "late", "new"]
    assert traces["after"].stamps[0][0] == "GRPC_WAITREAD_START"


# API keys.


def limited_outcomes(folder: Path, tmp_path: Path, num_processes: int) -> list[Any]:
    """What keys with limits see on one stream, and what is counted for them."""
    ring = Ring(tmp_path / f"keys{num_processes}.json")
    limited = ring.create("limited", rpm_limit=5)
    KeyFile(ring.path).change(lambda _: ring.document)
    audit = tmp_path / f"audit{num_processes}.jsonl"
    more = ("--api-key-file", str(ring.path), "--audit-log", str(audit))
    names = ring.names()

    def masked(text: str) -> str:
        for id, name in names.items():
            text = text.replace(id, name)
        return text

    found: list[Any] = []
    with naiad(repositories(folder), flags(num_processes, *more)) as server:
        messages: list[pb.ModelInferRequest | bytes] = [
            word("a"),
            word("b", "nothing"),
            message("word", "no inputs"),
            many(2, "many"),
            word("e"),
            word("too many"),
            many(2, "too many of many"),
            message("word", "no inputs and too many"),
            word("unknown and too many", "nothing"),
        ]
        keys = [ring.good, limited, ring.other_model, ring.other_scope, ring.revoked, "no key"]
        for key in keys:
            with StreamCall(server, bearer(key)) as call:
                for each in messages:
                    call.send(each)
                    try:
                        found.append(masked(shown(call.read())))
                        has_two = each is messages[3] or each is messages[6]
                        if has_two and "error" not in found[-1]:
                            found.append(masked(shown(call.read())))
                    except grpc.RpcError:
                        break
                call.half_close()
                call.rest()
                found.append((call.status[0], masked(call.status[1])))
        with StreamCall(server, bearer(limited)) as call:
            call.send(b"\xff")
            call.rest()
            found.append((call.status[0], masked(call.status[1])))
        found.append(key_metrics(server, ring))
    # The server has written everything when it has ended. A decoupled request ends after its last
    # response, so the order of lines is a matter of timing.
    lines = map(json.loads, audit.read_text().splitlines())
    return found + sorted(
        (names.get(line["key"], ""), line["api"], line["model"], line["status"]) for line in lines
    )


def test_limits_of_keys_are_those_of_one_process(folder: Path, tmp_path: Path) -> None:
    one, two = (limited_outcomes(folder, tmp_path, count) for count in (1, 2))
    assert two == one
    assert sum("limit of 5 requests per minute" in str(outcome) for outcome in two) == 5


def test_a_revoked_key_ends_its_stream(folder: Path, tmp_path: Path) -> None:
    ring = Ring(tmp_path / "keys.json")
    key = ring.create("soon revoked")
    KeyFile(ring.path).change(lambda _: ring.document)
    with (
        naiad(repositories(folder), flags(2, "--api-key-file", str(ring.path))) as server,
        StreamCall(server, bearer(key)) as call,
    ):
        assert not call.ask(word()).error_message
        found = key_change.find(ring.document, key)
        ring.document = key_change.revoke(ring.document, found, utc_now())
        KeyFile(ring.path).change(lambda _: ring.document)
        with pytest.raises(grpc.RpcError):
            eventually(lambda: bool(call.ask(word()).error_message), "the key is revoked")
        assert call.status[0] is grpc.StatusCode.UNAUTHENTICATED


def test_a_client_that_leaves_gives_its_place_back(folder: Path, tmp_path: Path) -> None:
    ring = Ring(tmp_path / "keys.json")
    key = ring.create("one at a time", max_parallel_requests=1)
    KeyFile(ring.path).change(lambda _: ring.document)
    report = Report(tmp_path)
    with naiad(repositories(folder), flags(2, "--api-key-file", str(ring.path))) as server:
        leaving = StreamCall(server, bearer(key))
        leaving.send(message("endless", BEGUN=str(report.path)))
        leaving.read()
        with StreamCall(server, bearer(key)) as call:
            assert call.ask(word()).error_message.endswith("limit of 1 requests at a time")
            leaving.close()
            eventually(lambda: not call.ask(word()).error_message, "there is room again")
            assert report.read().endswith(b" cancelled")
    report.close()


def test_streams_that_the_server_process_serves_count_once(folder: Path, tmp_path: Path) -> None:
    """While traces are sampled, both guards see each message."""
    ring = Ring(tmp_path / "keys.json")
    KeyFile(ring.path).change(lambda _: ring.document)
    traced = [f"--trace-config=triton,file={tmp_path / 'trace.json'}"]
    traced += ["--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]
    with (
        naiad(repositories(folder), flags(2, "--api-key-file", str(ring.path), *traced)) as server,
        StreamCall(server, bearer(ring.three)) as call,
    ):
        errors = [call.ask(word(str(index))).error_message for index in range(4)]
        assert errors[:3] == ["", "", ""]
        assert errors[3].endswith("limit of 3 requests per minute")
        key = key_change.find(ring.document, ring.three)
        ring.document = key_change.revoke(ring.document, key, utc_now())
        KeyFile(ring.path).change(lambda _: ring.document)
        with pytest.raises(grpc.RpcError):
            eventually(lambda: not call.ask(word()).error_message, "the key is revoked")
        assert call.status[0] is grpc.StatusCode.UNAUTHENTICATED
