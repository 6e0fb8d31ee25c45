"""A server with a remote repository: it loads, reloads and polls models, and serves them while the
store is unreachable."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.stores.open_store import open_store
from tests.server.gates import LIMIT_S, in_thread
from tests.server.harness import Server, ServerFailedError, launch_naiad, naiad
from tests.server.model_folder import Control, write_ensemble, write_model
from tests.server.s3_server import KEYS, S3Server, s3_server
from tests.unit.stores.cloud_servers import HubHandler, cloud_server

EXPLICIT = "--model-control-mode=explicit"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**KEYS, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def upload(s3: S3Server, folder: Path, bucket: str = "models", prefix: str = "repo/") -> None:
    s3.upload(bucket, folder, prefix)


def test_serves_a_repository_in_s3(
    s3: S3Server, environment: dict[str, str], tmp_path: Path
) -> None:
    """Serves a model and reloads it after a change. Then the store stops: the server continues to
    serve, and starts again without it."""
    models = tmp_path / "models"
    write_model(models, "m", "first")
    write_model(models, "bystander")
    write_ensemble(models, "ensemble", "m")
    s3.make_bucket("models", {"repo/ensemble/1/": b""})
    upload(s3, models)
    url = s3.url("models", "repo")
    with naiad([url], [EXPLICIT], environment) as server:
        control = Control(server)
        assert [row[0] for row in control.index()] == ["bystander", "ensemble", "m"]
        assert control.load("ensemble") == (200, "")
        assert control.load("bystander") == (200, "")
        assert control.word("ensemble") == "first"
        pid = control.pid("bystander")
        write_model(models, "m", "second")
        upload(s3, models)
        assert control.load("m") == (200, "")
        assert control.word("ensemble") == "second"
        assert control.load("bystander") == (200, "")
        assert control.pid("bystander") == pid, "uploaded again, but not changed"
        s3.stop()
        assert control.load("m") == (200, "")
        assert control.word("m") == "second"
        server.wait_for_line(r"cannot be reached .* its copy of .* is used")
    with naiad([url], ["--exit-on-error=true"], environment) as server:
        server.wait_for_line(r"cannot be reached .* its copy of .* is used")
        assert Control(server).word("ensemble") == "second"
        assert server.is_ready()


def test_polls_a_repository_in_s3(
    s3: S3Server, environment: dict[str, str], tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_model(models, "m", "first")
    s3.make_bucket("models")
    upload(s3, models, prefix="")
    with naiad(
        [s3.url("models")], ["--model-control-mode=poll", "--repository-poll-secs=1"], environment
    ) as server:
        control = Control(server)
        assert control.word("m") == "first"
        write_model(models, "m", "second")
        write_model(models, "new")
        since = len(server.lines)
        upload(s3, models, prefix="")
        server.wait_for_line("successfully loaded 'm' version 1", since=since)
        server.wait_for_line("successfully loaded 'new' version 1", since=since)
        assert (control.word("m"), control.word("new")) == ("second", "new")
        s3.delete("models", "m/config.pbtxt", "m/1/model.py")
        server.wait_for_line("successfully unloaded 'm' version 1", since=since)
        s3.stop()
        server.wait_for_line("cannot be reached", since=since)
        assert control.word("new") == "new", "an unreachable store is not an empty store"


def test_fetches_many_small_models(
    s3: S3Server, environment: dict[str, str], tmp_path: Path
) -> None:
    s3.make_bucket("models", {f"m{number}/1/model.py": b"x" * 1000 for number in range(105)})
    store = open_store(s3.url("models"), "", environment)
    store.refresh()
    assert len(store.names()) == 105
    assert all(
        (store.directory(name) or Path()).joinpath("1/model.py").stat().st_size == 1000
        for name in store.names()
    )
    cache = tmp_path / "cache" / "naiad" / "repositories"
    assert oct(cache.stat().st_mode & 0o777) == "0o700"


def test_serves_a_repository_on_the_hub(environment: dict[str, str], tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "m", "from the hub")
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in models.rglob("*")
        if path.is_file()
    }
    with cloud_server(HubHandler, files | {"readme.md": b"hello"}) as hub:
        environment["HF_ENDPOINT"] = hub.url
        with naiad(["hf://organisation/models/models"], [], environment) as server:
            assert Control(server).word("m") == "from"
    with naiad(["hf://organisation/models/models"], [], environment) as server:
        server.wait_for_line(r"cannot be reached .* its copy of .* is used")
        assert Control(server).word("m") == "from"


def failed_start(server: Server) -> str:
    """Returns the output of a server that cannot start."""
    with pytest.raises(ServerFailedError):
        server.wait_started()
    assert server.stop() == 1
    return "\n".join(server.lines)


def test_does_not_start_with_an_unreachable_store(environment: dict[str, str]) -> None:
    output = failed_start(launch_naiad(["s3://127.0.0.1:9/models"], [], environment))
    assert (
        "model repository 's3://127.0.0.1:9/models' cannot be reached, and there is no copy of it"
        in output
    )
    assert "error: creating server: Internal - failed to load all models" in output


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/models", "unsupported model repository 'ftp://host/models'"),
        ("s3://", "'' is not a valid bucket name"),
        ("/no/such/folder", "failed to stat file /no/such/folder"),
    ],
)
def test_rejects_an_invalid_repository(environment: dict[str, str], url: str, message: str) -> None:
    assert message in failed_start(launch_naiad([url], [], environment))


def test_exits_cleanly_on_sigterm_while_models_are_fetched(environment: dict[str, str]) -> None:
    """The store sends only half of each file until the server has received the signal."""
    halted, released = threading.Event(), threading.Event()

    class Halting(HubHandler):
        def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            if status != 206 or self.command == "HEAD":
                super().send(status, body, headers)
                return
            middle = len(body) // 2
            super().send(
                status, body[:middle], {**(headers or {}), "Content-Length": str(len(body))}
            )
            halted.set()
            released.wait()
            with contextlib.suppress(OSError):  # The server has closed the connection.
                self.wfile.write(body[middle:])

    files = {f"models/m/1/weights{number}": os.urandom(100_000) for number in range(20)}
    with cloud_server(Halting, files) as hub:
        server = launch_naiad(
            ["hf://organisation/models/models"], [], {**environment, "HF_ENDPOINT": hub.url}
        )
        try:
            server.wait_for_line("fetching 20 files")
            assert halted.wait(LIMIT_S)
            server.signal(signal.SIGTERM)
            server.wait_for_line("interrupted while models were loading")
            released.set()
            assert server.wait_exit() == 0
        finally:
            released.set()
            server.stop()


class HangingHub(HubHandler):
    """Answers no request while `open` is not set."""

    asked, open = threading.Event(), threading.Event()

    def respond(self, path: str, query: dict[str, str]) -> None:
        if not self.open.is_set():
            self.asked.set()
            self.open.wait()
        with contextlib.suppress(OSError):  # The server has closed the connection.
            super().respond(path, query)


@pytest.fixture
def hanging_hub(environment: dict[str, str], tmp_path: Path) -> Iterator[type[HangingHub]]:
    """A hub with two models that answers until the test clears `open`."""
    write_model(tmp_path / "models", "m")
    write_model(tmp_path / "models", "n")
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in (tmp_path / "models").rglob("*")
        if path.is_file()
    }

    class Hub(HangingHub):
        asked, open = threading.Event(), threading.Event()

    Hub.open.set()
    with cloud_server(Hub, files) as server:
        environment["HF_ENDPOINT"] = server.url
        try:
            yield Hub
        finally:
            Hub.open.set()


HUB_URL = "hf://organisation/models/models"
EXIT_TIMEOUT = "--exit-timeout-secs=3"
EXIT_LIMIT_S = 15.0
"""Far less than the store's time-outs."""


def test_sigterm_at_the_start_does_not_wait_for_a_store_that_hangs(
    hanging_hub: type[HangingHub], environment: dict[str, str]
) -> None:
    hanging_hub.open.clear()
    server = launch_naiad([HUB_URL], [EXIT_TIMEOUT], environment)
    try:
        assert hanging_hub.asked.wait(LIMIT_S)
        server.signal(signal.SIGTERM)
        assert server.wait_exit(EXIT_LIMIT_S) == 0
    finally:
        server.stop()


@pytest.mark.parametrize("is_forced", [False, True])
def test_the_end_does_not_wait_for_loads_from_a_store_that_hangs(
    hanging_hub: type[HangingHub], environment: dict[str, str], is_forced: bool
) -> None:
    """More loads than Python has threads by default; the other models of the server go on."""
    flags = [EXPLICIT, EXIT_TIMEOUT, "--load-model=m"]
    with naiad([HUB_URL], flags, environment) as server:
        hanging_hub.open.clear()
        path = "/v2/repository/models/n/load"
        loads = [in_thread(lambda: server.post(path, {})) for _ in range(40)]
        assert hanging_hub.asked.wait(LIMIT_S)
        assert server.get("/v2/models/m/config")[0] == 200
        assert Control(server).word("m") == "m"
        server.signal(signal.SIGTERM)
        server.wait_for_line("Waiting for in-flight requests")
        if is_forced:
            server.signal(signal.SIGINT)
        assert server.wait_exit(EXIT_LIMIT_S) == int(is_forced)
        concurrent.futures.wait(loads, LIMIT_S)


def test_the_end_does_not_wait_for_a_poll_of_a_store_that_hangs(
    hanging_hub: type[HangingHub], environment: dict[str, str]
) -> None:
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", EXIT_TIMEOUT]
    with naiad([HUB_URL], flags, environment) as server:
        hanging_hub.open.clear()
        assert hanging_hub.asked.wait(LIMIT_S)
        server.signal(signal.SIGTERM)
        assert server.wait_exit(EXIT_LIMIT_S) == 0
