"""Model control beyond single loads, on a real server.

The tests cover overrides and attacks with them, ensembles, many clients at once, loads from within
models, several repositories, retries, and leaks.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench.process_tree import MIB, memory_bytes
from tests.server.gates import eventually
from tests.server.harness import (
    Server,
    ServerFailedError,
    launch_naiad,
    naiad,
    process_name,
    process_tree,
    wait_gone,
)
from tests.server.model_folder import (
    CONFIG_JSON,
    Control,
    model_code,
    put,
    write_ensemble,
    write_model,
)

EXPLICIT = "--model-control-mode=explicit"
UNLOADED = ("UNAVAILABLE", "unloaded")
NOT_POLLED = "failed to load 'm', failed to poll from model repository"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server has its own temporary directory, so that a test can list its files."""
    environment = {"TMPDIR": str(tmp_path_factory.mktemp("tmp"))}
    with naiad([str(repository)], [EXPLICIT], environment) as one:
        one.environment = environment  # type: ignore[attr-defined]
        yield one


@pytest.fixture
def control(server: Server, repository: Path) -> Iterator[Control]:
    one = Control(server)
    yield one
    for name in {row[0] for row in one.index()}:
        one.unload(name, unload_dependents=True)
    for folder in list(repository.iterdir()):
        shutil.rmtree(folder)


def states(control: Control, *names: str) -> dict[str, tuple[str, str]]:
    return {name: (state, reason) for name, _, state, reason in control.index(*names)}


def wait_unloaded(server: Server, name: str, since: int) -> None:
    server.wait_for_line(f"successfully unloaded '{name}' version", since=since)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def override(path: str = "1/model.py", text: str = "") -> dict[str, str]:
    return {
        "config": json.dumps(CONFIG_JSON),
        f"file:{path}": encoded(text or model_code("override")),
    }


def temporary_folder(server: Server) -> Path:
    return Path(server.environment["TMPDIR"])  # type: ignore[attr-defined]


def test_files_of_a_request_replace_the_whole_model(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "m", "disk")
    assert control.load("m", **override()) == (200, "")
    assert control.word("m") == "override"
    folders = list(temporary_folder(server).iterdir())
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700]
    since = len(server.lines)
    control.unload("m")
    wait_unloaded(server, "m", since)
    assert list(temporary_folder(server).iterdir()) == []
    assert control.load("m") == (200, "")
    assert control.word("m") == "disk"


def test_files_of_a_request_survive_a_crash_of_the_worker(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "m", "disk")
    control.load("m", **override())
    since = len(server.lines)
    os.kill(control.pid("m"), 9)
    server.wait_for_line("worker of 'm_0' is back", since=since)
    assert control.word("m") == "override"


def test_a_request_can_contain_a_model_of_no_repository(control: Control) -> None:
    assert control.load("fresh", **override()) == (200, "")
    assert control.word("fresh") == "override"
    assert control.index("fresh") == [("fresh", "1", "READY", "")]
    assert control.load("fresh")[0] == 500
    assert control.word("fresh") == "override"
    control.unload("fresh")
    assert control.index("fresh") == []


@pytest.mark.parametrize(
    "path",
    [
        "../evil", "../../evil", "1/../../evil", "1/../../../../../../tmp/evil", "/../evil",
        "1/../../m/1/model.py", "..", ".", "", "/", "1/", "1/..", "1\\..\\..\\evil", "..\\evil",
        "C:\\evil", "1/mo\ndel.py", "n" * 300, "d/" * 600 + "f",
    ],
)  # fmt: skip
def test_rejects_a_path_outside_of_the_model(
    control: Control, server: Server, repository: Path, path: str
) -> None:
    write_model(repository, "m", "disk")
    control.load("m")
    since = len(server.lines)
    assert control.load("m", **override(path, "evil")) == (500, NOT_POLLED)
    server.wait_for_line(
        r"Poll failed for model directory 'm': Invalid file parameter 'file:", since=since
    )
    assert control.word("m") == "disk"
    assert list(temporary_folder(server).iterdir()) == []
    assert not Path("/tmp/evil").exists()


def test_rejects_a_path_with_a_nul(control: Control, server: Server, repository: Path) -> None:
    """Triton's parser of JSON refuses it already."""
    write_model(repository, "m", "disk")
    status, message = control.load("m", **override("1/mo\0del.py", "evil"))
    assert status in (400, 500), message
    assert list(temporary_folder(server).iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "1/model.py",
        "/1/model.py",
        "//1/model.py",
        "./1//model.py",
        "1/../1/model.py",
        "x/y/../../1/model.py",
    ],
)
def test_paths_are_relative_to_the_folder_of_the_model(
    control: Control, repository: Path, path: str
) -> None:
    write_model(repository, "m", "disk")
    assert control.load("m", **override(path)) == (200, "")
    assert control.word("m") == "override"


def test_a_path_from_the_root_is_inside_of_the_folder(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "m", "disk")
    parameters = {**override(), "file:/tmp/naiad-inside": encoded("x")}
    assert control.load("m", **parameters) == (200, "")
    (root,) = temporary_folder(server).iterdir()
    assert (root / "m" / "tmp" / "naiad-inside").read_text() == "x"
    assert not Path("/tmp/naiad-inside").exists()


def test_white_space_around_a_name_is_trimmed(control: Control, repository: Path) -> None:
    write_model(repository, "m", "disk")
    assert control.load(" m\t") == (200, "")
    assert control.word("m") == "disk"
    assert control.load("  ") == (
        400,
        "Model name cannot be empty. Please enter a valid name to deploy.",
    )
    assert control.load(" .. ") == (
        400,
        "invalid model name ' .. ', model name must not contain path traversal characters",
    )


@pytest.mark.parametrize("name", ["a;b", "a$b", "a'b", "a(b)", "a~b", "a#b", "a!b", "a\\b"])
def test_the_name_of_a_python_model_has_no_characters_of_a_shell(
    control: Control, repository: Path, name: str
) -> None:
    write_model(repository, name)
    assert control.load(name) == (
        400,
        f"load failed for model '{name}': version 1 is at UNAVAILABLE state: Invalid argument: "
        "Invalid stub name: contains invalid characters;\n",
    )
    put(
        repository / name / "config.pbtxt",
        'backend: "identity" input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ] '
        'output [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]',
    )
    assert control.load(name) == (200, "")


def test_does_not_write_through_a_link(control: Control, repository: Path, tmp_path: Path) -> None:
    """The model's own directory is not written, so the target of a link in it does not change."""
    folder = write_model(repository, "m", "disk")
    (tmp_path / "outside").mkdir()
    (folder / "link").symlink_to(tmp_path / "outside")
    control.load("m", **override(), **{"file:link/model.py": encoded("evil")})
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"file:1/model.py": encoded("x")}, 500),
        ({"config": json.dumps(CONFIG_JSON), "file:1/model.py": "not base64!"}, 400),
        (
            {
                "config": json.dumps(CONFIG_JSON),
                "file:1": encoded("x"),
                "file:1/model.py": encoded("x"),
            },
            500,
        ),
        ({"config": json.dumps(CONFIG_JSON), "file:model.py": encoded("x")}, 400),
        (
            {
                "config": json.dumps({**CONFIG_JSON, "name": "other"}),
                "file:1/model.py": encoded("x"),
            },
            500,
        ),
        ({"config": "{", "file:1/model.py": encoded("x")}, 500),
    ],
)
def test_a_bad_override_changes_nothing(
    control: Control, server: Server, repository: Path, parameters: dict[str, str], status: int
) -> None:
    write_model(repository, "m", "disk")
    control.load("m")
    assert control.load("m", **parameters)[0] == status
    assert control.word("m") == "disk"
    assert list(temporary_folder(server).iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "../m",
        "..",
        "a/b",
        "a\\b",
        "a\0b",
        "m;touch x",
        "$(touch x)",
        "`touch x`",
        "n" * 10_000,
        "ü",
        "m\n",
        " ",
        "%2e%2e",
        "~",
        "*",
    ],
)
@pytest.mark.parametrize("action", ["load", "unload", "infer", "config", "ready"])
def test_survives_unusual_model_names(
    control: Control, server: Server, action: str, name: str
) -> None:
    requests: dict[str, Callable[[], tuple[int, str]]] = {
        "load": lambda: control.load(name),
        "unload": lambda: control.unload(name),
        "infer": lambda: control.infer(name),
        "config": lambda: control.get(name, "/config"),
        "ready": lambda: control.get(name, "/ready"),
    }
    status, _ = requests[action]()
    assert status in (200, 400, 404, 414, 500)
    assert server.is_ready()


def test_loads_and_unloads_steps_with_their_ensembles(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "part")
    write_ensemble(repository, "inner", "part")
    write_ensemble(repository, "outer", "inner")
    write_ensemble(repository, "other", "part")
    assert control.load("outer") == (200, "")
    assert control.load("other") == (200, "")
    assert set(states(control).values()) == {("READY", "")}
    control.unload("outer", unload_dependents=True)
    after = states(control)
    assert (after["part"], after["other"]) == (("READY", ""), ("READY", ""))
    assert (after["inner"], after["outer"]) == (UNLOADED, UNLOADED)
    since = len(server.lines)
    control.unload("other", unload_dependents=True)
    wait_unloaded(server, "part", since)
    assert set(states(control).values()) == {UNLOADED}


def test_does_not_unload_a_step_that_was_loaded_by_name(control: Control, repository: Path) -> None:
    write_model(repository, "part")
    write_ensemble(repository, "ensemble", "part")
    control.load("part")
    control.load("ensemble")
    control.unload("ensemble", unload_dependents=True)
    assert states(control) == {"part": ("READY", ""), "ensemble": UNLOADED}


def test_unloads_and_restores_ensembles_with_a_step(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "part", "first")
    write_ensemble(repository, "inner", "part")
    write_ensemble(repository, "outer", "inner")
    control.load("outer")
    since = len(server.lines)
    control.unload("part")
    wait_unloaded(server, "part", since)
    assert set(states(control).values()) == {UNLOADED}
    assert server.is_ready(), "models that a client has unloaded do not count"
    write_model(repository, "part", "second")
    assert control.load("part") == (200, "")
    assert control.word("outer") == "second"


def test_the_error_of_an_ensemble_names_its_step(control: Control, repository: Path) -> None:
    write_model(repository, "part", initialize="raise ValueError('no weights')")
    write_ensemble(repository, "unfit", "part")
    status, message = control.load("unfit")
    assert status == 400
    assert message.startswith(
        "load failed for model 'unfit': ensemble 'unfit' depends on 'part' which has no loaded "
        "version. Model 'part' loading failed with error: version 1 is at UNAVAILABLE state: "
        "Internal: ValueError: no weights"
    )
    assert control.index("unfit") == [("unfit", "", "", "")]
    write_ensemble(repository, "lonely", "nowhere")
    assert control.load("lonely") == (
        400,
        "load failed for model 'lonely': ensemble lonely contains models that are not available "
        "or ambiguous: nowhere\n",
    )
    write_ensemble(repository, "round", "about")
    write_ensemble(repository, "about", "round")
    status, message = control.load("round")
    assert (
        status,
        "circular dependency between ensembles: round -> ... -> about -> round" in message,
    ) == (400, True)
    write_model(repository, "part", "good")
    assert control.load("part") == (200, "")
    assert control.word("unfit") == "good", "the ensemble is loaded as soon as its step is"


def test_twenty_clients_load_and_unload_the_same_model(
    control: Control, server: Server, repository: Path
) -> None:
    write_model(repository, "m")
    write_ensemble(repository, "e", "m")
    with ThreadPoolExecutor(20) as pool:
        actions = [control.load if number % 2 else control.unload for number in range(100)]
        results = list(
            pool.map(lambda action: action[1]("m" if action[0] % 3 else "e"), enumerate(actions))
        )
    assert [result for result in results if result != (200, "")] == []
    assert control.load("e") == (200, "")
    assert control.word("e") == "m"
    workers = [pid for pid in process_tree(server.pid) if process_name(pid) == "m_0"]
    assert wait_gone([pid for pid in workers if pid != control.pid("m")]) == []


def test_an_unload_waits_for_the_load_before_it(
    control: Control, server: Server, repository: Path, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    write_model(repository, "slow", initialize=f"open({str(fifo)!r}).read()")
    with ThreadPoolExecutor(3) as pool:
        loading = pool.submit(control.load, "slow")
        with fifo.open("w"):
            assert control.index("slow") == [("slow", "1", "LOADING", "")]
            since = len(server.lines)
            unloading = pool.submit(control.unload, "slow")
            write_model(repository, "quick")
            assert control.load("quick") == (200, ""), "other models do not wait"
            assert not unloading.done()
        assert (loading.result(), unloading.result()) == ((200, ""), (200, ""))
    wait_unloaded(server, "slow", since)
    assert states(control, "slow") == {"slow": UNLOADED}


CALLER = """
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        try:
            {execute}
            word = "done"
        except pb_utils.TritonModelException as error:
            word = "error " + str(error)
        output = pb_utils.Tensor("WORD", np.array([word], dtype=np.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


def write_caller(
    repository: Path, name: str, *, initialize: str = "pass", execute: str = "pass", extra: str = ""
) -> None:
    write_model(repository, name, extra=extra)
    put(repository / name / "1" / "model.py", CALLER.format(initialize=initialize, execute=execute))


def test_a_model_loads_and_unloads_another_in_execute(control: Control, repository: Path) -> None:
    write_model(repository, "target")
    actions = (
        "pb_utils.load_model('target'); assert pb_utils.is_model_ready('target'); "
        "pb_utils.unload_model('target')"
    )
    write_caller(repository, "caller", execute=actions)
    control.load("caller")
    assert control.word("caller") == "done"
    assert states(control, "target")["target"][0] in ("UNLOADING", "UNAVAILABLE")


def test_a_model_loads_with_files(control: Control, repository: Path) -> None:
    files = {"file:1/model.py": model_code("from the caller").encode()}
    write_caller(
        repository,
        "caller",
        execute=f"pb_utils.load_model('fresh', {json.dumps(CONFIG_JSON)!r}, {files!r})",
    )
    control.load("caller")
    assert control.word("caller") == "done"
    assert control.word("fresh") == "from"


def test_a_model_loads_another_from_initialize(tmp_path: Path) -> None:
    """This also works if only one model may load at a time, because the second load is part of the
    first."""
    write_model(tmp_path, "target")
    write_caller(tmp_path, "caller", initialize="pb_utils.load_model('target')")
    with naiad([str(tmp_path)], [EXPLICIT, "--model-load-thread-count=1"]) as server:
        control = Control(server)
        assert control.load("caller") == (200, "")
        assert control.word("target") == "target"


@pytest.mark.parametrize(("one", "other"), [("one", "one"), ("other", "one")])
def test_rejects_a_load_that_would_wait_for_itself(
    control: Control, repository: Path, one: str, other: str
) -> None:
    write_caller(repository, "one", initialize=f"pb_utils.load_model({one!r})")
    write_caller(repository, "other", initialize=f"pb_utils.load_model({other!r})")
    status, message = control.load("one")
    assert status == 400
    assert (
        "a related model 'one' to a load/unload request is currently loading or unloading"
        in message
    )


def test_rejects_a_model_that_reloads_itself_but_cannot_be_loaded_twice(
    control: Control, repository: Path
) -> None:
    parameter = 'parameters { key: "UNLOAD_BEFORE_RELOAD" value { string_value: "true" } }'
    write_caller(repository, "m", execute="pb_utils.load_model('m')", extra=parameter)
    control.load("m")
    (repository / "m" / "1" / "new").touch()
    assert (
        "a related model 'm' to a load/unload request is currently loading" in control.infer("m")[1]
    )
    assert control.load("m") == (200, "")


def test_a_model_in_two_repositories_is_not_served(tmp_path: Path) -> None:
    for number in ("1", "2"):
        write_model(tmp_path / number, "twice")
        write_model(tmp_path / number, f"only{number}")
    write_ensemble(tmp_path / "1", "ensemble", "twice")
    with naiad(
        [str(tmp_path / "1"), str(tmp_path / "2")],
        ["--exit-on-error=false", "--strict-readiness=false"],
    ) as server:
        control = Control(server)
        assert control.index() == [
            ("ensemble", "", "", ""),
            ("only1", "1", "READY", ""),
            ("only2", "1", "READY", ""),
            ("twice", "", "UNAVAILABLE", "model appears in two or more repositories"),
        ]
        assert control.infer("twice") == (404, "Request for unknown model: 'twice' is not found")
        assert control.load("only1") == (
            503,
            "explicit model load / unload is not allowed if polling is enabled",
        )


def test_namespaces_separate_models_of_the_same_name(tmp_path: Path) -> None:
    stores = [tmp_path / "1", tmp_path / "2"]
    for store in stores:
        write_model(store, "twice", store.name)
        write_ensemble(store, f"ensemble{store.name}", "twice")
    write_model(stores[0], "once")
    write_ensemble(stores[1], "far", "once")
    with naiad(
        [str(store) for store in stores], [EXPLICIT, "--load-model=*", "--model-namespacing=true"]
    ) as server:
        control = Control(server)
        assert [row[0] for row in control.index()] == [
            "ensemble1",
            "once",
            "twice",
            "ensemble2",
            "far",
            "twice",
        ]
        assert {row[2] for row in control.index()} == {"READY"}
        assert control.infer("twice") == (
            400,
            "There are 2 identifiers of model 'twice' in global map, model namespace must be "
            "provided to resolve ambiguity.",
        )
        assert [control.word(name) for name in ("ensemble1", "ensemble2", "far")] == [
            "1",
            "2",
            "once",
        ]
        assert control.word(f"{stores[1]}::twice") == "2"
        page = server.get("/metrics", "metrics")[1].decode()
        assert f'nv_inference_count{{model="twice",namespace="{stores[1]}",version="1"}} 2' in page
        assert not server.is_ready("/v2/models/twice/ready")
        assert server.is_ready()
        control.unload("twice")
        assert {row[2] for row in control.index("twice", "ensemble1", "ensemble2")} <= {
            "UNLOADING",
            "UNAVAILABLE",
        }
        assert control.load("ensemble2") == (200, "")
        assert control.word("twice") == "2"


def test_rejects_a_wildcard_with_other_startup_models(tmp_path: Path) -> None:
    server = launch_naiad([str(tmp_path)], [EXPLICIT, "--load-model=*", "--load-model=m"])
    with pytest.raises(ServerFailedError):
        server.wait_started()
    assert server.stop() == 1
    assert any(
        "Wildcard model name '*' must be the ONLY startup model if specified at all." in line
        for line in server.lines
    )


def test_loads_only_the_startup_models(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path, name)
    with naiad([str(tmp_path)], [EXPLICIT, "--load-model=a"]) as server:
        assert Control(server).index() == [("a", "1", "READY", ""), ("b", "", "", "")]


def test_retries_a_failed_load(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    fail = (
        f"folder = {str(attempts)!r}; os.mkdir(f'{{folder}}/{{len(os.listdir(folder))}}'); "
        "assert len(os.listdir(folder)) > 2"
    )
    write_model(tmp_path / "models", "m", initialize=fail)
    with naiad([str(tmp_path / "models")], ["--model-load-retry-count=2"]) as server:
        assert Control(server).word("m") == "m"
        assert len(list(attempts.iterdir())) == 3


def test_exits_cleanly_on_sigterm_while_models_load(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    write_model(tmp_path / "models", "slow", initialize=f"open({str(fifo)!r}).read()")
    write_model(tmp_path / "models", "quick")
    server = launch_naiad([str(tmp_path / "models")], [])
    try:
        with fifo.open("w"):
            tree = process_tree(server.pid)
            assert len(tree) > 2
            server.signal(15)
            assert server.wait_exit(20) == 0
        assert wait_gone(tree) == []
    finally:
        server.stop()


def test_removes_the_files_of_a_killed_server(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (tmp_path / "models").mkdir()
    environment = {"TMPDIR": str(temporary)}
    killed = launch_naiad([str(tmp_path / "models")], [EXPLICIT], environment).wait_started()
    Control(killed).load("fresh", **override())
    assert len(list(temporary.iterdir())) == 1
    killed.signal(9)
    killed.wait_exit()
    killed.stop()
    stranger = Path(tempfile.mkdtemp(dir=temporary, prefix=f"naiad-model-{os.getpid()}-"))
    with naiad([str(tmp_path / "models")], [EXPLICIT], environment):
        assert list(temporary.iterdir()) == [stranger], "the folder of a living process stays"


@pytest.mark.parametrize(
    "initialize",
    ["self.weights = np.ones(4_000_000)", "x = np.ones(4_000_000); raise ValueError('no')"],
)
def test_fifty_loads_and_unloads_leak_nothing(
    control: Control, server: Server, repository: Path, initialize: str
) -> None:
    write_model(repository, "m", initialize=initialize)

    def cycle(count: int) -> None:
        for _ in range(count):
            status, _ = control.load("m")
            assert status == (400 if "raise" in initialize else 200)
            since = len(server.lines)
            control.unload("m")
            if status == 200:
                wait_unloaded(server, "m", since)

    cycle(5)
    processes, memory = len(process_tree(server.pid)), memory_bytes(server.pid)["Anonymous"]
    descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))
    cycle(50)
    eventually(lambda: len(process_tree(server.pid)) <= processes, "all other processes have ended")
    eventually(
        lambda: len(os.listdir(f"/proc/{server.pid}/fd")) <= descriptors + 2,
        "all other files are closed",
    )
    assert memory_bytes(server.pid)["Anonymous"] - memory < 4 * MIB
