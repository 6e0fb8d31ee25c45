"""Running sums through every way into the server: no answer with status OK may be wrong.

    python -m tests.attacks.sequences [--chunks 2000] [--sequences 8] [--only TEXT]

Each chunk adds one to the sum of its sequence, so every answer shows which chunks the model has
seen. Cells are combinations of a model (ONNX with implicit state, Python with its own state and
2 ms per step), a strategy, a layout (one process, frontend processes, a router), and clients: all
chunks at once on one stream each or on a single stream, or START awaited and then windows of 16
unordered calls. The rules: with default limits and without faults every chunk is answered; with
limits, keys, a small memory budget or killed workers the answers with status OK are still right.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np

from naiad.keys import key_change
from naiad.keys.api_class import SCOPES
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile
from naiad.pb import grpc_service_pb2 as pb
from tests.onnx_file import Node, Value, write
from tests.server.harness import Server, naiad, process_name, process_tree
from tests.server.router_fleet import fleet

WINDOW = 16
LIMIT_S = 240.0
LAYOUTS = ("one process", "two frontends", "router")
CLIENTS = ("streams", "stream", "calls", "http")
STRATEGIES = {"oldest": "oldest { max_candidate_sequences: 4 }", "direct": "direct { }"}
_CONTROLS = """  control_input [
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } ] },
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
"""
_STATE = '  state [ { input_name: "s" output_name: "s_out" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
_PYTHON = """import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        time.sleep(0.002)
        responses = []
        for request in requests:
            given = {
                name: pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]
                for name in ("x", "READY", "START", "CORRID")
            }
            key = given["CORRID"]
            if given["START"]:
                self.sums[key] = 0.0
            if given["READY"]:  # an empty slot of a direct batch is not
                self.sums[key] += given["x"]
            y = np.array([[self.sums.get(key, 0.0)]], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"""


def write_sums(folder: Path) -> Path:
    """Four models of four slots each, so that eight sequences wait for each other."""
    for strategy, text in STRATEGIES.items():
        for kind in ("onnx", "python"):
            model = folder / f"{kind}_{strategy}"
            (model / "1").mkdir(parents=True)
            (model / "config.pbtxt").write_text(
                f'backend: "{"onnxruntime" if kind == "onnx" else kind}"\nmax_batch_size: 4\n'
                'input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
                'output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
                f"sequence_batching {{\n  {text}\n  max_sequence_idle_microseconds: 60000000\n"
                f"{_STATE if kind == 'onnx' else _CONTROLS}}}\n"
            )
            if kind == "python":
                (model / "1" / "model.py").write_text(_PYTHON)
                continue
            write(
                model / "1" / "model.onnx",
                [Node("Add", ["x", "s"], ["y"]), Node("Identity", ["y"], ["s_out"])],
                [Value("x", "FP32", [-1, 1]), Value("s", "FP32", [-1, 1])],
                [Value("y", "FP32", [-1, 1]), Value("s_out", "FP32", [-1, 1])],
            )
    return folder


class Outcome(msgspec.Struct):
    num_right: int = 0
    wrong: list[str] = []
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    num_starts: int = 0

    @property
    def num_errors(self) -> int:
        return self.errors.total()

    def add(self, other: Outcome) -> None:
        self.num_right += other.num_right
        self.wrong = self.wrong + other.wrong
        self.errors += other.errors
        self.num_starts += other.num_starts

    def line(self) -> str:
        kinds = "; ".join(f"{count} x {text}" for text, count in self.errors.most_common(4))
        return f"{self.num_right} right, {len(self.wrong)} WRONG, {self.num_errors} errors" + (
            f", {self.num_starts} starts ({kinds})" if kinds else ""
        )


class Door(msgspec.Struct, frozen=True):
    """Where clients go, and the key that they have."""

    http_port: int
    grpc: str
    key: str = ""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),) if self.key else ()


# Requests and answers.


def message(model: str, sequence: int, number: int, last: int) -> bytes:
    request = pb.ModelInferRequest(model_name=model, id=f"{sequence}/{number}")
    request.parameters["sequence_id"].int64_param = sequence
    request.parameters["sequence_start"].bool_param = number == 0
    request.parameters["sequence_end"].bool_param = number == last
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(np.ones((1, 1), np.float32).tobytes())
    return request.SerializeToString()


def body(sequence: int, *, start: bool, end: bool) -> bytes:
    return json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}],
            "parameters": {
                "sequence_id": sequence,
                "sequence_start": start,
                "sequence_end": end,
            },
        }
    ).encode()


def read_sum(response: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(response.raw_output_contents[0], np.float32)[0])


def shorten(text: str) -> str:
    """Errors of one kind have one text."""
    return "".join("N" if character.isdigit() else character for character in text)[:90]


# All chunks at once, on a stream: the answer to chunk k is k + 1, or an error.


async def run_stream(door: Door, model: str, ids: Sequence[int], chunks: int) -> Outcome:
    outcome = Outcome()
    sent = [
        message(model, sequence, number, chunks - 1) for number in range(chunks) for sequence in ids
    ]

    async def requests() -> AsyncIterator[bytes]:
        for each in sent:
            yield each

    num_answers = 0
    async with grpc.aio.insecure_channel(door.grpc) as channel:
        call = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            None,
            pb.ModelStreamInferResponse.FromString,
        )(requests(), metadata=door.metadata, timeout=LIMIT_S)
        try:
            async for answer in call:
                num_answers += 1
                if answer.error_message:
                    outcome.errors[shorten(answer.error_message)] += 1
                    continue
                response = answer.infer_response
                check_sum(outcome, response.id, read_sum(response))
        except grpc.aio.AioRpcError as error:
            outcome.errors[shorten(f"{error.code().name} {error.details()}")] += (
                len(sent) - num_answers
            )
    return outcome


def check_sum(outcome: Outcome, id: str, value: float) -> None:
    if value == int(id.split("/")[1]) + 1:
        outcome.num_right += 1
    else:
        outcome.wrong.append(f"chunk {id}: {value}")


# START awaited, then windows of unordered calls, END last: the sums of a window are those of its
# chunks, in any order. After an error the sequence is started again, and a late chunk without START
# must be refused.


class Caller:
    """Sends one chunk of a sequence, and returns its sum or the text of an error."""

    async def ask(self, slot: int, *, start: bool = False, end: bool = False) -> float | str:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class GrpcCaller(Caller):
    def __init__(self, door: Door, model: str, sequence: int) -> None:
        self._door = door
        self._channel = grpc.aio.insecure_channel(
            door.grpc, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._function = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", None, pb.ModelInferResponse.FromString
        )
        self._messages = {
            (True, False): message(model, sequence, 0, 2),
            (False, False): message(model, sequence, 1, 2),
            (False, True): message(model, sequence, 2, 2),
        }

    async def ask(self, slot: int, *, start: bool = False, end: bool = False) -> float | str:
        try:
            response = await self._function(
                self._messages[start, end], metadata=self._door.metadata, timeout=LIMIT_S
            )
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
        return read_sum(response)

    async def close(self) -> None:
        await self._channel.close()


class HttpCaller(Caller):
    """A connection for each call of a window."""

    def __init__(self, door: Door, model: str, sequence: int) -> None:
        key = f"authorization: Bearer {door.key}\r\n" if door.key else ""
        self._door = door
        self._head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: a\r\n{key}content-length: "
        self._sequence = sequence
        self._streams: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, slot: int, *, start: bool = False, end: bool = False) -> float | str:
        content = body(self._sequence, start=start, end=end)
        try:
            if slot not in self._streams:
                self._streams[slot] = await asyncio.open_connection(
                    "127.0.0.1", self._door.http_port
                )
            reader, writer = self._streams[slot]
            writer.write(f"{self._head}{len(content)}\r\n\r\n".encode() + content)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = json.loads(await reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            if slot in self._streams:
                self._streams.pop(slot)[1].close()
            return f"connection: {type(error).__name__}"
        if b"connection: close" in head:
            self._streams.pop(slot)[1].close()
        if "error" in answer:
            return f"{head[9:12].decode()} {answer['error']}"
        return float(answer["outputs"][0]["data"][0])

    async def close(self) -> None:
        for _, writer in self._streams.values():
            writer.close()


async def run_windows(caller: Caller, sequence: int, chunks: int) -> Outcome:
    outcome = Outcome()
    num_left, deadline_s = chunks, time.monotonic() + LIMIT_S
    while num_left and time.monotonic() < deadline_s:
        outcome.num_starts += 1
        done = await _one_life(caller, sequence, num_left, outcome)
        num_left -= max(done, 1)
    await caller.close()
    return outcome


async def _one_life(caller: Caller, sequence: int, num_left: int, outcome: Outcome) -> int:
    """From START to END or to the first error; returns how many chunks were answered."""
    first = await caller.ask(0, start=True)
    if isinstance(first, str):
        outcome.errors[shorten(first)] += 1
        await asyncio.sleep(0.005)  # what a client does that is told to try again
        return 0
    _check_window(outcome, sequence, 0, [first])
    done = 1
    while done < num_left - 1:
        size = min(WINDOW, num_left - 1 - done)
        answers = await asyncio.gather(*(caller.ask(slot) for slot in range(size)))
        sums = [answer for answer in answers if not isinstance(answer, str)]
        errors = [answer for answer in answers if isinstance(answer, str)]
        outcome.errors.update(map(shorten, errors))
        _check_window(outcome, sequence, done, sums)
        done += len(sums)
        if errors:
            late = await caller.ask(0)
            if not isinstance(late, str):
                outcome.wrong.append(f"sequence {sequence}: {late} after an error")
            return done
    if done < num_left:
        last = await caller.ask(0, end=True)
        if isinstance(last, str):
            outcome.errors[shorten(last)] += 1
        else:
            _check_window(outcome, sequence, done, [last])
        done += 1
    return done


def _check_window(outcome: Outcome, sequence: int, before: int, sums: list[float]) -> None:
    """Each sum of the window comes once; where some failed, it is one of those of the window."""
    seen = set(sums)
    for value in sums:
        if before < value <= before + WINDOW and value in seen:
            seen.discard(value)
            outcome.num_right += 1
        else:
            outcome.wrong.append(f"sequence {sequence}: {value} in the window after {before}")


async def run_clients(
    door: Door, model: str, clients: str, num_sequences: int, chunks: int
) -> Outcome:
    ids = range(1, num_sequences + 1)
    if clients == "stream":
        return await run_stream(door, model, ids, chunks)
    if clients == "streams":
        runs = [run_stream(door, model, [sequence], chunks) for sequence in ids]
    else:
        make = GrpcCaller if clients == "calls" else HttpCaller
        runs = [run_windows(make(door, model, sequence), sequence, chunks) for sequence in ids]
    outcome = Outcome()
    for each in await asyncio.gather(*runs):
        outcome.add(each)
    return outcome


# Layouts.


def door_of(server: Server, key: str = "") -> Door:
    return Door(server.http_port, server.grpc, key)


@contextlib.contextmanager
def served(folder: Path, layout: str, flags: Sequence[str] = ()) -> Iterator[tuple[Door, Server]]:
    """Yields the door, and the server with the workers."""
    if layout == "router":
        with fleet(folder, "a", server_flags=flags) as one:
            yield door_of(one.router), one.servers["a"]
        return
    count = 2 if layout == "two frontends" else 0
    with naiad([str(folder)], [f"--frontend-processes={count}", *flags]) as server:
        yield door_of(server), server


def key_flags(folder: Path, **limits: Any) -> tuple[str, str]:
    """Returns the secret of a key with these limits, and the flag of its file."""
    document = KeyDocument()
    issued = key_change.create(document, NewKey(name="one", scopes=SCOPES, **limits), utc_now())
    path = folder / "keys.json"
    KeyFile(path).change(lambda _: issued.document)
    return issued.token, f"--api-key-file={path}"


def kill_worker(server: Server) -> bool:
    """Kills a worker, if there is one."""
    for pid in process_tree(server.pid):
        with contextlib.suppress(OSError):
            if process_name(pid) == "python_oldest_0":
                os.kill(pid, signal.SIGKILL)
                return True
    return False


class Run:
    def __init__(self, num_sequences: int, chunks: int, only: str) -> None:
        self.num_sequences, self.chunks, self.only = num_sequences, chunks, only
        self.failures: list[str] = []
        self.total = Outcome()

    def cell(
        self, name: str, door: Door, model: str, clients: str, *, is_whole: bool = False
    ) -> None:
        if self.only not in name:
            return
        start_s = time.monotonic()
        outcome = asyncio.run(run_clients(door, model, clients, self.num_sequences, self.chunks))
        self.total.add(outcome)
        print(f"{name}: {outcome.line()} in {time.monotonic() - start_s:.1f} s", flush=True)
        if outcome.wrong:
            self.failures.append(f"{name}: {outcome.wrong[:3]}")
        if is_whole and outcome.num_right != self.num_sequences * self.chunks:
            self.failures.append(f"{name}: not every chunk was answered")

    def matrix(self, folder: Path) -> None:
        for layout in LAYOUTS:
            with served(folder, layout) as (door, server):
                for model in sorted(path.name for path in folder.iterdir()):
                    for clients in CLIENTS:
                        name = f"{layout}, {model}, {clients}"
                        self.cell(name, door, model, clients, is_whole=True)
                self._kills(layout, door, server)
            for size in (8, 1024, 0):
                flag = f"--max-queue-size={size}"
                with served(folder, layout, [flag]) as (door, _):
                    for model in ("python_oldest", "python_direct"):
                        for clients in CLIENTS:
                            name = f"{layout}, {flag}, {model}, {clients}"
                            self.cell(name, door, model, clients, is_whole=True)
            with served(folder, layout, ["--request-memory-byte-size=4000"]) as (door, _):
                for clients in CLIENTS:
                    self.cell(f"{layout}, memory, {clients}", door, "python_oldest", clients)

    def keys(self, folder: Path, keys: Path) -> None:
        token, flag = key_flags(keys, max_parallel_requests=8)
        for layout in LAYOUTS[:2]:
            with served(folder, layout, [flag]) as (door, _):
                for clients in CLIENTS:
                    name = f"{layout}, max-parallel 8, {clients}"
                    keyed = msgspec.structs.replace(door, key=token)
                    self.cell(name, keyed, "python_oldest", clients)

    def _kills(self, layout: str, door: Door, server: Server) -> None:
        for clients in CLIENTS:
            name = f"{layout}, kills, {clients}"
            if self.only not in name:
                continue
            with killing(server):
                self.cell(name, door, "python_oldest", clients)


@contextlib.contextmanager
def killing(server: Server) -> Iterator[None]:
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.7):
            kill_worker(server)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--only", default="", help="run the cells whose name contains this")
    options = parser.parse_args()
    run = Run(options.sequences, options.chunks, options.only)
    with tempfile.TemporaryDirectory() as folder:
        sums = write_sums(Path(folder) / "sums")
        run.matrix(sums)
        run.keys(sums, Path(folder))
    print(f"in all: {run.total.line()}")
    for failure in run.failures:
        print(f"FAILED {failure}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
