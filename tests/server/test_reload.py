"""A reload under load: not one request fails, whatever is changed; a reload that fails changes
nothing."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.server.gates import eventually
from tests.server.harness import Server, naiad, process_tree, wait_gone
from tests.server.model_folder import ANY, Control, model_code, put, write_ensemble, write_model

NUM_RELOADS = 100


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with naiad([str(repository)], ["--model-control-mode=explicit"]) as one:
        yield one


@pytest.fixture
def control(server: Server, repository: Path) -> Iterator[Control]:
    """What a test has loaded is unloaded after it, and its files are gone."""
    one = Control(server)
    yield one
    for folder in list(repository.iterdir()):
        one.unload(folder.name)
        shutil.rmtree(folder)


class Load:
    """Threads that send one request after the other until they are told to stop, and keep what went
    wrong."""

    def __init__(self, server: Server, models: list[str]) -> None:
        self._stop = threading.Event()
        self.failures: list[str] = []
        self._answered: Counter[threading.Thread] = Counter()
        """Each thread counts its own good answers."""
        targets = [(self._http, model) for model in models] + [
            (self._grpc, model) for model in models
        ]
        self._threads = [
            threading.Thread(target=send, args=(server, model)) for send, model in targets
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def num_answers(self) -> int:
        return self._answered.total()

    def wait_answers(self) -> None:
        """Until each thread has had a good one."""
        for thread in self._threads:
            eventually(partial(self._answered.__contains__, thread), "a request is answered")

    def _http(self, server: Server, model: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        try:
            while not self._stop.is_set():
                connection.request("POST", f"/v2/models/{model}/infer", json.dumps(ANY))
                answer = connection.getresponse()
                body = answer.read()
                self._count(answer.status == 200, f"{answer.status} {body!r}")
        finally:
            connection.close()

    def _grpc(self, server: Server, model: str) -> None:
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name="ANY", datatype="INT32", shape=[1]).contents.int_contents.append(0)
        with grpc.insecure_channel(server.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            while not self._stop.is_set():
                try:
                    stub.ModelInfer(request, timeout=30)
                    self._count(True, "")
                except grpc.RpcError as error:
                    self._count(False, str(error))

    def _count(self, is_good: bool, words: str) -> None:
        if is_good:
            self._answered[threading.current_thread()] += 1
        else:
            self.failures.append(words)


def test_a_hundred_reloads_under_load_fail_no_request(
    server: Server, control: Control, repository: Path
) -> None:
    write_model(repository, "m", "0")
    write_ensemble(repository, "e", "m")
    assert control.load("e") == (200, "")
    with Load(server, ["m", "e"]) as load:
        load.wait_answers()
        for number in range(1, NUM_RELOADS + 1):
            put(repository / "m" / "1" / "model.py", model_code(str(number)))
            assert control.load("m") == (200, "")
            assert control.word("m") == control.word("e") == str(number)
    assert load.failures == []
    assert {("e", "1", "READY", ""), ("m", "1", "READY", "")} <= set(control.index("m", "e"))


def test_instances_come_and_go_under_load(
    server: Server, control: Control, repository: Path
) -> None:
    write_model(repository, "m", extra="instance_group [ { count: 1 kind: KIND_CPU } ]")
    control.load("m")
    first, config = control.pid("m"), repository / "m" / "config.pbtxt"
    with Load(server, ["m"]) as load:
        for count in (3, 2, 4, 1, 2) * 4:
            put(
                config,
                f"{config.read_text().rpartition('instance_group')[0]}instance_group [ "
                f"{{ count: {count} kind: KIND_CPU }} ]",
            )
            assert control.load("m") == (200, "")
            groups = json.loads(server.get("/v2/models/m/config")[1])["instance_group"]
            assert [group["count"] for group in groups] == [count]
    assert load.failures == []
    assert control.pid("m") == first, "the first instance was never in the way"


def test_a_load_that_removes_instances_responds_after_they_have_finalized(
    control: Control, repository: Path, tmp_path: Path
) -> None:
    finalize = f"""
    def finalize(self):
        time.sleep(0.2)
        open({str(tmp_path)!r} + "/" + self.name, "w").close()
"""
    groups = "instance_group [ {{ count: {} kind: KIND_CPU }} ]"
    folder = write_model(repository, "m", extra=groups.format(4))
    put(folder / "1" / "model.py", model_code("m") + finalize)
    assert control.load("m") == (200, "")
    put(
        folder / "config.pbtxt",
        (folder / "config.pbtxt").read_text().replace(groups.format(4), groups.format(1)),
    )
    assert control.load("m") == (200, "")
    assert len(list(tmp_path.iterdir())) == 3
    assert control.word("m") == "m"


def test_versions_come_and_go_beside_each_other(
    server: Server, control: Control, repository: Path
) -> None:
    write_model(repository, "m", "one", versions=(1,), extra="version_policy { all { } }")
    control.load("m")
    first = control.pid("m", "1")
    with Load(server, ["m"]) as load:
        write_model(repository, "m", "two", versions=(2,), extra="version_policy { all { } }")
        assert control.load("m") == (200, "")
        assert (control.word("m"), control.word("m", "1"), control.pid("m", "1")) == (
            "two",
            "one",
            first,
        )
        assert json.loads(server.get("/v2/models/m/versions/1")[1])["versions"] == ["1"]
        write_config = (
            (repository / "m" / "config.pbtxt")
            .read_text()
            .replace("all { }", "specific { versions: [ 1 ] }")
        )
        put(repository / "m" / "config.pbtxt", write_config)
        assert control.load("m") == (200, "")
        assert (control.word("m"), control.pid("m", "1")) == ("one", first)
    assert load.failures == []
    assert json.loads(server.get("/v2/models/m")[1])["versions"] == ["1"]


@pytest.mark.parametrize(
    ("file", "text", "status"),
    [
        ("1/model.py", "def (:", 400),
        ("1/model.py", "import no_such_module", 400),
        (
            "1/model.py",
            "class TritonPythonModel:\n    def initialize(self, args):\n        raise "
            "ValueError('no')\n",
            400,
        ),
        ("config.pbtxt", "this is {{{ no config", 500),
        ("config.pbtxt", 'backend: "no_such_backend"', 400),
    ],
)
def test_a_failed_reload_keeps_what_serves(
    server: Server, control: Control, repository: Path, file: str, text: str, status: int
) -> None:
    write_model(repository, "m", "good")
    control.load("m")
    pid, good = control.pid("m"), (repository / "m" / file).read_text()
    with Load(server, ["m"]) as load:
        put(repository / "m" / file, text)
        for _ in range(3):
            assert control.load("m")[0] == status
            assert control.pid("m") == pid
            assert ("m", "1", "READY", "") in control.index("m")
        put(repository / "m" / file, good)
        assert control.load("m") == (200, "")
    assert load.failures == []
    assert server.is_ready()


def test_a_model_too_large_to_stand_twice_is_unloaded_first(
    control: Control, repository: Path, tmp_path: Path
) -> None:
    """The model holds a lock that a second copy cannot have."""
    lock, fifo = tmp_path / "lock", tmp_path / "fifo"
    parameter = 'parameters { key: "UNLOAD_BEFORE_RELOAD" value { string_value: "true" } }'
    code = (
        model_code("one", initialize=f"os.mkdir({str(lock)!r})")
        + f"\n    def finalize(self):\n        os.rmdir({str(lock)!r})\n"
    )
    model = write_model(repository, "large", extra=parameter)
    put(model / "1" / "model.py", code)
    assert control.load("large") == (200, "")
    os.mkfifo(fifo)
    put(
        model / "1" / "model.py",
        code.replace("one", "two").replace("os.mkdir", f"open({str(fifo)!r}).read(); os.mkdir"),
    )
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(control.load, "large")
        with fifo.open("w"):
            assert control.infer("large") == (
                503,
                "Request for unknown model: 'large' version 1 is not at ready state",
            )
        assert loading.result() == (200, "")
    assert control.word("large") == "two"
    put(model / "1" / "model.py", code.replace("one", "three"))
    put(model / "config.pbtxt", (model / "config.pbtxt").read_text().replace("true", "false"))
    assert control.load("large") == (200, ""), (
        "what serves says that it cannot stand beside another"
    )
    put(model / "1" / "model.py", code.replace("one", "four"))
    status, words = control.load("large")
    assert (status, "FileExistsError" in words) == (400, True)
    assert control.word("large") == "three"


def test_the_old_copies_are_gone_afterwards(
    server: Server, control: Control, repository: Path
) -> None:
    write_model(repository, "m", "0")
    control.load("m")
    workers = [control.pid("m")]
    for number in range(5):
        put(repository / "m" / "1" / "model.py", model_code(str(number)))
        control.load("m")
        workers.append(control.pid("m"))
    assert wait_gone(workers[:-1]) == []
    assert workers[-1] in process_tree(server.pid)


SEQUENCE_CONFIG = """backend: "python"
input [ { name: "ANY" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
sequence_batching { max_sequence_idle_microseconds: 60000000 control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ] }
"""
SEQUENCE_MODEL = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            is_start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy()[0]
            self.count = 1 if is_start else self.count + 1
            word = np.array([f"{word} {{self.count}} {{os.getpid()}}"], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("WORD", word)]))
        return responses
"""


class SequenceModel:
    """A model whose instances count the requests of the one sequence that each of them holds."""

    def __init__(self, server: Server, repository: Path) -> None:
        self._server = server
        self._folder = write_model(repository, "s")
        put(self._folder / "config.pbtxt", SEQUENCE_CONFIG)

    def write(self, word: str) -> None:
        code = SEQUENCE_MODEL.replace("{word}", word).replace("{{", "{").replace("}}", "}")
        put(self._folder / "1" / "model.py", code)

    def write_count(self, count: int) -> None:
        groups = f"instance_group [ {{ count: {count} kind: KIND_CPU }} ]"
        put(self._folder / "config.pbtxt", f"{SEQUENCE_CONFIG}{groups}")

    def step(self, id: int, *, start: bool = False, end: bool = False) -> str:
        parameters = {"sequence_id": id, "sequence_start": start, "sequence_end": end}
        status, body = self._server.post("/v2/models/s/infer", {**ANY, "parameters": parameters})
        assert status == 200, body
        return str(json.loads(body)["outputs"][0]["data"][0]).rpartition(" ")[0]

    def pid(self, id: int) -> int:
        parameters = {"sequence_id": id}
        _, body = self._server.post("/v2/models/s/infer", {**ANY, "parameters": parameters})
        return int(json.loads(body)["outputs"][0]["data"][0].rpartition(" ")[2])


def test_a_sequence_stays_with_the_copy_that_has_begun_it(
    server: Server, control: Control, repository: Path
) -> None:
    """Only that copy's model remembers the sequence."""
    model = SequenceModel(server, repository)
    model.write("old")
    assert control.load("s") == (200, "")
    step = model.step
    assert [step(1, start=True), step(1)] == ["old 1", "old 2"]
    model.write("new")
    assert control.load("s") == (200, "")
    assert [step(2, start=True), step(1), step(2, end=True), step(1, end=True)] == [
        "new 1",
        "old 3",
        "new 2",
        "old 4",
    ]
    assert step(1, start=True, end=True) == "new 1"


def test_a_sequence_model_is_resized_in_place_after_reloads_with_open_sequences(
    server: Server, control: Control, repository: Path
) -> None:
    model = SequenceModel(server, repository)
    words = ["zero", "one", "two"]
    pids = []
    for id, word in enumerate(words, 1):
        model.write(word)
        model.write_count(1)
        assert control.load("s") == (200, "")
        assert model.step(id, start=True) == f"{word} 1"
        pids.append(model.pid(id))
    assert len(set(pids)) == 3
    model.write_count(2)
    assert control.load("s") == (200, "")
    assert model.step(4, start=True) == "two 1"
    added = model.pid(4)
    assert added not in pids
    assert model.step(3, end=True) == "two 3"
    assert model.step(5, start=True) == "two 1"
    assert model.pid(5) == pids[2], "the instance that served before the resize still serves"
    model.write_count(1)
    assert control.load("s") == (200, "")
    assert [model.step(id, end=True) for id in (1, 2, 4)] == ["zero 3", "one 3", "two 3"]
    assert wait_gone([*pids[:2], added]) == []
    assert model.pid(5) == pids[2]
    assert model.step(5, end=True) == "two 4"
