"""Remote repositories in servers that others have written: moto and rclone for S3, Azurite for
Azure. `make test-stores` installs them; a server that is not there is skipped, and says so."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import AzureStore

from naiad.errors import NaiadError
from naiad.stores.open_store import open_store
from naiad.stores.remote_store import RemoteStore
from tests.server.gates import eventually
from tests.server.harness import naiad
from tests.server.model_folder import Control, write_model
from tests.server.s3_server import KEYS, s3_server

AZURITE = Path("build/azurite/node_modules/.bin/azurite-blob")
ACCOUNT = "devstoreaccount1"
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The emulator's own."""
LARGE = os.urandom(40_000_000)
"""Two parts."""


class Rig:
    def __init__(
        self,
        url: str,
        variables: dict[str, str],
        put: Callable[[str, bytes], None],
        wrong: dict[str, str] | None = None,
    ) -> None:
        """`url` is that of the bucket. `put` writes a key of it. `wrong` are credentials that the
        server refuses."""
        self.wrong = wrong or {}
        self.url = url
        self.variables = variables
        self.put = put


@contextlib.contextmanager
def program(command: list[str]) -> Iterator[int]:
    """Runs a server; `PORT` in its command is replaced by the port that is yielded."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    process = subprocess.Popen([part.replace("PORT", str(port)) for part in command])

    def is_listening() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        eventually(is_listening, "the server listens")
        yield port
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[Rig]:
    with s3_server() as server:
        server.make_bucket("models")
        yield Rig(server.url("models"), KEYS, lambda key, text: server.put("models", {key: text}))


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[Rig]:
    command = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if command is None:
        pytest.skip("rclone is not installed (make test-stores)")
    (folder / "models").mkdir()
    keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
    options = ["--addr", "127.0.0.1:PORT", "--auth-key", keys, "--etag-hash", "MD5"]

    def put(key: str, text: bytes) -> None:
        path = folder / "models" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)

    with program([command, "serve", "s3", *options, "--dir-cache-time=0", str(folder)]) as port:
        yield Rig(f"s3://127.0.0.1:{port}/models", KEYS, put, {"AWS_SECRET_ACCESS_KEY": "wrong"})


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[Rig]:
    if not AZURITE.exists():
        pytest.skip("Azurite is not installed (make test-stores)")
    options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    with program([str(AZURITE), *options, "--blobHost=127.0.0.1", "--blobPort=PORT"]) as port:
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        make_container(endpoint)
        config = {"account_name": ACCOUNT, "account_key": AZURITE_KEY, "endpoint": endpoint}
        client = {"allow_http": True, "timeout": timedelta(seconds=60)}
        store = AzureStore("models", config=config, client_options=client)  # type: ignore[arg-type]
        variables = {"AZURE_STORAGE_ENDPOINT": endpoint, "AZURE_STORAGE_KEY": AZURITE_KEY}

        def put(key: str, text: bytes) -> None:
            obstore.put(store, key, text)

        wrong = {"AZURE_STORAGE_KEY": base64.b64encode(b"wrong").decode()}
        yield Rig(f"as://{ACCOUNT}/models", variables, put, wrong)


def make_container(endpoint: str) -> None:
    date = email.utils.formatdate(usegmt=True)
    version = "2020-10-02"
    signed = (
        f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n"
        f"/{ACCOUNT}/{ACCOUNT}/models\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        "Content-Length": "0",
    }
    url = f"{endpoint}/models?restype=container"
    with urllib.request.urlopen(urllib.request.Request(url, None, headers, method="PUT")):
        pass


@pytest.fixture(scope="module", params=[moto, rclone, azurite], ids=lambda make: make.__name__)
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with request.param(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def open_cached(rig: Rig, tmp_path: Path) -> Callable[..., RemoteStore]:
    def open_one(path: str, **variables: str) -> RemoteStore:
        environment = {"HOME": str(tmp_path), **rig.variables, **variables}
        return open_store(f"{rig.url}/{path}", str(tmp_path / "cache"), environment)

    return open_one


def test_files_small_and_large_and_odd(rig: Rig, open_cached: Callable[..., RemoteStore]) -> None:
    files = {
        "m/config.pbtxt": b"name: 'm'",
        "m/1/weights.bin": LARGE,
        "m/1/empty": b"",
        "m/1/a b+c%ü.txt": b"odd",
    }
    for path, text in files.items():
        rig.put(f"files/{path}", text)
    store = open_cached("files")
    store.refresh()
    folder = store.directory("m")
    assert folder is not None, store.failure("m")
    found = {
        f"m/{path.relative_to(folder)}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    assert found.keys() == files.keys()
    assert all(found[path] == text for path, text in files.items())


def test_a_change_is_seen(rig: Rig, open_cached: Callable[..., RemoteStore]) -> None:
    rig.put("changing/m/1/model.py", b"one")
    store = open_cached("changing")
    store.refresh()
    rig.put("changing/m/1/model.py", b"and another")
    rig.put("changing/n/1/model.py", b"new")
    store.refresh()
    assert store.names() == {"m", "n"}
    folder = store.directory("m")
    assert folder is not None
    assert (folder / "1" / "model.py").read_bytes() == b"and another"


def test_a_wrong_secret_says_what_the_store_says(
    rig: Rig, open_cached: Callable[..., RemoteStore]
) -> None:
    if not rig.wrong:
        pytest.skip("moto does not check signatures")
    with pytest.raises(NaiadError) as refused:
        open_cached("files", **rig.wrong).refresh()
    message = refused.value.message
    assert "cannot be reached, and there is no copy of it: " in message
    assert "Signature" in message or "Authoriz" in message
    assert "\n" not in message


def test_a_server_serves_from_it(rig: Rig, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "m", "served")
    for path in (tmp_path / "models").rglob("*"):
        if path.is_file():
            rig.put(f"served/{path.relative_to(tmp_path / 'models')}", path.read_bytes())
    environment = {**rig.variables, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with naiad([f"{rig.url}/served"], [], environment) as server:
        assert Control(server).word("m") == "served"
