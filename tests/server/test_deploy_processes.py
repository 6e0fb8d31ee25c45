"""What a deployment says about the processes of a model has an effect in them: cores, memory,
environment variables, an extra package index, a Python version and an archive of an environment."""

from __future__ import annotations

import functools
import json
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.server.deploy_client import DeployClient
from tests.server.harness import Server, naiad
from tests.server.test_environments import wheel

FACTS = """\
import json
import os
import resource
import sys

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        facts = {
            "cores": sorted(os.sched_getaffinity(0)),
            "threads": os.environ.get("OMP_NUM_THREADS"),
            "memory": resource.getrlimit(resource.RLIMIT_DATA)[1],
            "greeting": os.environ.get("GREETING"),
            "executable": sys.executable,
            "unpacked": os.environ.get("UNPACKED"),
        }
        try:
            import naiad_test_greeter
            facts["greeter"] = naiad_test_greeter.text
        except ImportError:
            pass
        output = np.array([json.dumps(facts)], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("FACTS", output)]) for _ in requests]
"""
TENSORS = {
    "inputs": [{"name": "ANY", "data_type": "INT32", "dims": [1]}],
    "outputs": [{"name": "FACTS", "data_type": "BYTES", "dims": [1]}],
}
BODY = {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]}
NUM_CORES = len(os.sched_getaffinity(0))


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index on this machine: `more` has one package, `main` has none."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "main").mkdir()
    wheel(folder / "more" / "naiad-test-greeter", "naiad_test_greeter", "text = 'from the index'")
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def server(folder: Path, index: str) -> Iterator[Server]:
    """Its PATH has an interpreter of another version, which is a script: a real one would have to
    be installed."""
    (folder / "models").mkdir()
    (folder / "bin").mkdir()
    other = folder / "bin" / "python3.29"
    other.write_text(f'#!/bin/sh\ntouch {folder}/was-asked\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    variables = {
        "PIP_INDEX_URL": f"{index}/main",
        "PIP_CONFIG_FILE": os.devnull,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    flags = [f"--backend-config=python,environment-directory={folder / 'cache'}"]
    with naiad([str(folder / "models")], flags, variables) as started:
        yield started


@pytest.fixture
def client(server: Server) -> DeployClient:
    return DeployClient(server)


def new_model(client: DeployClient) -> dict[str, Any]:
    source = {"kind": "files", "value": client.upload({"model.py": FACTS.encode()})}
    return {"source": source, "backend": "python", **TENSORS}


def facts(server: Server, model: str) -> dict[str, Any]:
    status, body = server.post(f"/v2/models/{model}/infer", BODY)
    assert status == 200, body
    read: dict[str, Any] = json.loads(json.loads(body)["outputs"][0]["data"][0])
    return read


def test_cores_memory_and_variables_are_those_of_the_form(
    server: Server, client: DeployClient, folder: Path
) -> None:
    parameters = {"CPU_CORES": "1", "MEMORY_LIMIT": "1GiB", "ENV:GREETING": "good morning"}
    spec = new_model(client)
    done = client.deploy("bounded", **spec, parameters=parameters)
    assert done["state"] == "done", done
    found = facts(server, "bounded")
    assert len(found["cores"]) == 1
    assert found["threads"] == "1"
    assert found["memory"] == 1 << 30
    assert found["greeting"] == "good morning"
    text = (folder / "models/bounded/config.pbtxt").read_text()
    assert all(name in text for name in parameters)

    edit = {"source": {"kind": "repository", "value": "bounded"}, "parameters": {}}
    assert client.deploy("bounded", **edit)["state"] == "done"
    found = facts(server, "bounded")
    assert (len(found["cores"]), found["greeting"]) == (NUM_CORES, None)
    assert found["memory"] != 1 << 30


def test_instances_have_cores_of_their_own(server: Server, client: DeployClient) -> None:
    if NUM_CORES < 2:
        pytest.skip("needs two cores")
    spec = {**new_model(client), "instances": [{"count": 2, "kind": "KIND_CPU"}]}
    assert client.deploy("pair", **spec, parameters={"CPU_CORES": "1"})["state"] == "done"
    rows = json.loads(server.get("/console/api/state")[1])["models"]
    (row,) = [row for row in rows if row["name"] == "pair"]
    cores = [os.sched_getaffinity(instance["pid"]) for instance in row["instances"]]
    assert [len(one) for one in cores] == [1, 1]
    assert cores[0] != cores[1]


def test_a_wrong_value_is_shown_at_its_field(client: DeployClient) -> None:
    spec = new_model(client)
    wrong = {"CPU_CORES": "0", "MEMORY_LIMIT": "4", "ENV:A B": "x"}
    problems = client.preview("wrong", **spec, parameters=wrong)["problems"]
    assert {problem["path"] for problem in problems} == {f'parameters["{n}"]' for n in wrong}
    assert all(problem["severity"] == "error" and problem["line"] for problem in problems)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"CPU_CORES": "5000"}, "is 5000, but the server may use"),
        ({"PYTHON_VERSION": "3.28"}, "asks for Python 3.28, which this machine does not have"),
    ],
)
def test_what_the_machine_lacks_is_refused_and_leaves_nothing(
    client: DeployClient, folder: Path, parameters: dict[str, str], reason: str
) -> None:
    failed = client.deploy("lacking", **new_model(client), parameters=parameters)
    assert failed["state"] == "failed"
    assert reason in failed["error"]
    assert not (folder / "models/lacking").exists()


def test_packages_come_from_the_extra_index(
    server: Server, client: DeployClient, index: str, folder: Path
) -> None:
    requirements = f"--extra-index-url {index}/more\nnaiad-test-greeter\n"
    environment = {"kind": "requirements", "requirements": requirements}
    done = client.deploy("greets", **new_model(client), environment=environment)
    assert done["state"] == "done", done
    assert facts(server, "greets")["greeter"] == "from the index"
    assert (folder / "models/greets/requirements.txt").read_text() == requirements
    without = {"kind": "requirements", "requirements": "naiad-test-greeter\n"}
    failed = client.deploy("greets-not", **new_model(client), environment=without)
    assert "No matching distribution found for naiad-test-greeter" in failed["error"]
    assert failed["is_restored"]


def test_the_form_offers_the_pythons_of_the_machine_and_one_is_used(
    server: Server, client: DeployClient, folder: Path
) -> None:
    offer = client.call("GET", "deploy")[1]["processes"]
    own = f"3.{sys.version_info[1]}"
    assert {own, "3.29"} <= set(offer["pythons"])
    assert offer["num_cores"] >= 1
    environment = {"kind": "requirements", "requirements": ""}
    spec = {**new_model(client), "environment": environment}
    done = client.deploy("newer", **spec, parameters={"PYTHON_VERSION": "3.29"})
    assert done["state"] == "done", done
    assert (folder / "was-asked").exists()
    assert facts(server, "newer")["executable"].startswith(str(folder / "cache"))


def test_an_archive_of_an_environment_is_uploaded_and_used(
    server: Server, client: DeployClient, folder: Path, tmp_path: Path
) -> None:
    """The interpreter is a script, because a real one would be as large as Python itself."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nUNPACKED="$0" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "bin", "bin")
    content = (tmp_path / "env.tar.gz").read_bytes()
    draft = client.upload({"model.py": FACTS.encode(), "environment/env.tar.gz": content})
    environment = {"kind": "archive", "archive": f"{draft}/environment/env.tar.gz"}
    spec = {"source": {"kind": "files", "value": draft}, "backend": "python", **TENSORS}
    done = client.deploy("packed", **spec, environment=environment)
    assert done["state"] == "done", done
    assert facts(server, "packed")["unpacked"].startswith(str(folder / "cache"))
    assert (folder / "models/packed/environment.tar.gz").read_bytes() == content
    assert "EXECUTION_ENV_PATH" in (folder / "models/packed/config.pbtxt").read_text()
    assert client.call("GET", f"drafts/{draft}")[0] == 404

    # An edit keeps the archive that is there.
    edit = {"source": {"kind": "repository", "value": "packed"}, "max_batch_size": 0}
    edit |= {"environment": {"kind": "archive", "archive": ""}, "instances": [{"count": 2}]}
    edited = client.deploy("packed", **edit)
    assert edited["state"] == "done", edited
    assert facts(server, "packed")["unpacked"].startswith(str(folder / "cache"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"this is not an archive", "cannot be unpacked"),
        (None, "is a path outside the folder"),
    ],
)
def test_an_archive_that_is_not_an_environment_is_refused(
    client: DeployClient, folder: Path, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is None:
        (tmp_path / "x").write_text("x")
        with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "x", "../../evil")
        content = (tmp_path / "env.tar.gz").read_bytes()
    draft = client.upload({"model.py": FACTS.encode(), "environment/env.tar.gz": content})
    environment = {"kind": "archive", "archive": f"{draft}/environment/env.tar.gz"}
    spec = {"source": {"kind": "files", "value": draft}, "backend": "python", **TENSORS}
    failed = client.deploy("unpackable", **spec, environment=environment)
    assert failed["state"] == "failed"
    assert reason in failed["error"]
    assert failed["is_restored"]
    assert not (folder / "models/unpackable").exists()


def test_a_load_request_brings_no_variables_where_it_may_not_bring_files(tmp_path: Path) -> None:
    flags = ["--model-control-mode=explicit", "--allow-file-override=false"]
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.py").write_text(FACTS)
    (tmp_path / "m" / "config.pbtxt").write_text(
        'backend: "python"\n'
        'input { name: "ANY" data_type: TYPE_INT32 dims: 1 }\n'
        'output { name: "FACTS" data_type: TYPE_STRING dims: 1 }\n'
    )
    config: dict[str, Any] = {
        "backend": "python",
        "input": [{"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "FACTS", "data_type": "TYPE_STRING", "dims": [1]}],
    }
    with naiad([str(tmp_path)], flags) as server:

        def load() -> tuple[int, bytes]:
            body = {"parameters": {"config": json.dumps(config)}}
            return server.post("/v2/repository/models/m/load", body)

        assert load()[0] == 200
        config["parameters"] = {"ENV:GREETING": {"string_value": "hello"}}
        status, body = load()
        assert status != 200
        assert b'may not change parameters[\\"ENV:GREETING\\"]' in body
        assert facts(server, "m")["greeting"] is None
