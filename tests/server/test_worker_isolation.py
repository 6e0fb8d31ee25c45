"""A worker can hurt only itself: signals, processes that a model leaves behind, imports, the
environment, the number of instances, users and limits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import HttpCall, eventually, text
from tests.server.harness import (
    Server,
    free_ports,
    launch_naiad,
    naiad,
    naiad_command,
    naiad_environment,
    port_flags,
    process_tree,
    tree_without_frontends,
    wait_gone,
)
from tests.server.model_folder import Control, write_model

EXPLICIT = "--model-control-mode=explicit"
LEAVE_CHILDREN = """
import os, subprocess
pids = [subprocess.Popen(["sleep", "600"]).pid]
pids.append(int(subprocess.check_output(
    ["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"])))
pid = os.fork()
if not pid:
    os.setsid()
    if os.fork():
        os._exit(0)
    import time
    time.sleep(600)
os.waitpid(pid, 0)
children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
result = " ".join(map(str, {*pids, *map(int, children)}))
"""
"""A child, a daemon that has a session of its own, and a forked daemon."""


def run(server: Server, code: str) -> str:
    body = {"inputs": [text("CODE", code, is_batched=False)]}
    status, _, response = HttpCall(server, "/v2/models/runs_code/infer", body).response()
    assert status == 200, response
    result: str = response["outputs"][0]["data"][0]
    return result


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Servers that a test starts itself."""
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def server(repositories: Path, servers: list[Server]) -> Server:
    models = ("runs_code", "bystander", "crasher")
    flags = [EXPLICIT, "--exit-timeout-secs=5", *(f"--load-model={model}" for model in models)]
    servers.append(launch_naiad([str(repositories / "faults")], flags))
    return servers[0].wait_started()


def worker(server: Server) -> int:
    return int(run(server, "import os; result = os.getpid()"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


# Signals and processes.


def test_a_model_that_kills_its_process_group_kills_only_itself(server: Server) -> None:
    crasher = {"inputs": [text("HOW", "")]}
    pid = json.loads(server.post("/v2/models/crasher/infer", crasher)[1])["outputs"][0]["data"][0]
    for _ in range(3):
        body = {"inputs": [text("CODE", "import os; os.killpg(0, 9)", is_batched=False)]}
        status, _, response = HttpCall(server, "/v2/models/runs_code/infer", body).response()
        assert status == 500, response
    status, reply = server.post("/v2/models/crasher/infer", crasher)
    assert (status, json.loads(reply)["outputs"][0]["data"][0]) == (200, pid)


def test_a_worker_has_its_own_process_group_in_the_servers_session(server: Server) -> None:
    """The session decides how Linux divides the CPUs (docs/decisions/003)."""
    pid = worker(server)
    assert os.getpgid(pid) == pid
    assert os.getsid(pid) == os.getsid(server.pid)


def _unload(server: Server, pid: int) -> None:
    assert server.post("/v2/repository/models/runs_code/unload", {})[0] == 200


def _kill(server: Server, pid: int) -> None:
    server.signal(signal.SIGKILL)
    server.wait_exit()


ENDS: dict[str, Callable[[Server, int], object]] = {
    "worker killed": lambda server, pid: os.kill(pid, signal.SIGKILL),
    "unload": _unload,
    "template killed": lambda server, pid: os.kill(parent(pid), signal.SIGKILL),
    "server stopped": lambda server, pid: server.stop(),
    "server killed": _kill,
}


@pytest.mark.parametrize("how", ENDS)
def test_processes_that_a_model_started_end_with_its_worker(server: Server, how: str) -> None:
    pid = worker(server)
    left = [int(word) for word in run(server, LEAVE_CHILDREN).split()]
    assert len(left) == 3
    assert all(process_id in process_tree(server.pid) for process_id in left)
    ENDS[how](server, pid)
    assert not wait_gone([pid, *left], 20)
    if server.process.poll() is None:
        assert server.is_ready("/v2/models/bystander/ready") or how == "template killed"


def test_a_killed_template_leaves_no_zombie(server: Server) -> None:
    pid = worker(server)
    run(server, LEAVE_CHILDREN)
    os.kill(parent(pid), signal.SIGKILL)
    server.wait_for_line("worker of 'runs_code_0' is back")
    # The server, a template, and three workers.
    eventually(lambda: len(tree_without_frontends(server)) == 5, "nothing else is left")


# Imports.


def test_imports_nothing_from_the_current_directory(
    tmp_path: Path, repositories: Path, servers: list[Server]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("numpy", "msgspec", "json", "click", "uvloop", "triton_python_backend_utils"):
        (here / f"{name}.py").write_text(f"raise SystemExit('{name} of the current directory')")
    ports = free_ports()
    repository = f"--model-repository={repositories / 'faults'}"
    flags = [repository, EXPLICIT, "--load-model=bystander", *port_flags(ports)]
    servers.append(Server(naiad_command("serve", *flags), ports, naiad_environment(), cwd=here))
    assert servers[0].wait_started().is_ready("/v2/models/bystander/ready")


# The environment.

SECRETS = {
    "NAIAD_ID": "of-the-server",
    "NAIAD_OTHER_KEY": "key-of-a-client",
    "TRITONCACHE_REDIS_PASSWORD": "password-of-redis",
    "MY_TOKEN": "token-of-a-model",
}


def variables(server: Server) -> dict[str, Any]:
    result = run(server, "import json, os; result = json.dumps(dict(os.environ))")
    environment: dict[str, Any] = json.loads(result)
    return environment


def test_models_do_not_see_the_servers_secrets(repositories: Path) -> None:
    flags = [EXPLICIT, "--load-model=runs_code"]
    with naiad([str(repositories / "faults")], flags, SECRETS) as server:
        environment = variables(server)
        assert environment.keys() & SECRETS.keys() == {"MY_TOKEN"}
        assert "PATH" in environment
        for pid in (server.pid, parent(worker(server))):
            seen = Path(f"/proc/{pid}/environ").read_text()
            assert not [
                value for name, value in SECRETS.items() if name[:2] != "MY" and value in seen
            ]


def test_only_named_variables_pass(repositories: Path) -> None:
    flags = [
        EXPLICIT,
        "--load-model=runs_code",
        "--worker-environment=OTHER_*",
        "--worker-environment=NAIAD_OTHER_KEY",
    ]
    environment = {**SECRETS, "OTHER_1": "1"}
    with naiad([str(repositories / "faults")], flags, environment) as server:
        assert variables(server).keys() & environment.keys() == {"OTHER_1", "NAIAD_OTHER_KEY"}


def test_a_secret_on_the_command_line_is_hidden(repositories: Path) -> None:
    flags = [
        EXPLICIT,
        "--load-model=runs_code",
        "--http-restricted-api=logging:admin-key=hunter2hunter2",
        "--api-key",
        "sk-hunter2hunter2hunter2hunter2hunter2",
    ]
    with naiad([str(repositories / "faults")], flags) as server:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert b"hunter2" not in command
        assert b"--http-restricted-api=logging:admin-key=*" in command
        assert server.get("/v2/logging")[0] != 200


# Limits.


def test_refuses_too_many_instances(tmp_path: Path) -> None:
    write_model(tmp_path, "many", extra="instance_group [ { count: 100000 kind: KIND_CPU } ]")
    write_model(tmp_path, "few", extra="instance_group [ { count: 2 kind: KIND_CPU } ]")
    with naiad([str(tmp_path)], [EXPLICIT, "--max-model-instances=2"]) as server:
        control = Control(server)
        assert control.load("few") == (200, "")
        status, message = control.load("many")
        assert status == 400
        assert "asks for 100000 instances" in message
        assert "--max-model-instances allows 2" in message


def test_memory_beyond_the_limit_is_an_error_of_the_request(repositories: Path) -> None:
    flags = [EXPLICIT, "--load-model=runs_code", f"--worker-memory-limit={600 << 20}"]
    with naiad([str(repositories / "faults")], flags) as server:
        pid = worker(server)
        code = "result = len(bytearray(1 << 30))"
        body = {"inputs": [text("CODE", code, is_batched=False)]}
        status, _, response = HttpCall(server, "/v2/models/runs_code/infer", body).response()
        assert status == 500
        assert "MemoryError" in response["error"]
        assert run(server, "result = len(bytearray(100 << 20))") == str(100 << 20)
        assert worker(server) == pid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start workers as another user")
def test_workers_run_as_another_user_with_a_limit_on_processes(repositories: Path) -> None:
    flags = [
        EXPLICIT,
        "--load-model=runs_code",
        "--load-model=bystander",
        "--worker-user=nobody",
        "--worker-process-limit=40",
    ]
    fork_bomb = """
import os, subprocess
started = []
try:
    for _ in range(200):
        started.append(subprocess.Popen(["sleep", "600"]))
except OSError as error:
    result = f"{len(started)} {error.strerror}"
"""
    with naiad([str(repositories / "faults")], flags) as server:
        ids = run(server, "import os; result = f'{os.getuid()} {os.getgid()} {os.getgroups()}'")
        assert ids.split()[0] == "65534"
        assert "0" not in ids.split()[1:]
        kill = "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError as e: result = e.strerror"
        assert run(server, kill) == "Operation not permitted"
        number, _, reason = run(server, fork_bomb).partition(" ")
        assert int(number) < 40
        assert reason == "Resource temporarily unavailable"
        old = worker(server)
        os.kill(old, signal.SIGKILL)
        server.wait_for_line("worker of 'runs_code_0' is back")
        assert worker(server) != old


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--worker-user=no-such-user"], "there is no user 'no-such-user'"),
        (["--worker-user=root"], "must not be root"),
        (["--worker-process-limit=5"], "--worker-process-limit needs --worker-user"),
    ],
)
def test_refuses_a_user_that_workers_cannot_have(
    repositories: Path, servers: list[Server], flags: list[str], message: str
) -> None:
    servers.append(launch_naiad([str(repositories / "faults")], [EXPLICIT, *flags]))
    assert servers[0].wait_exit() == 1
    assert any(message in line for line in servers[0].lines), servers[0].tail()
