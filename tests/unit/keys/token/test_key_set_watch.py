"""The keys of an identity provider are read from a file or a URL while the server runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from naiad.errors import NaiadError, invalid_arg
from naiad.keys.token import key_set_watch
from naiad.keys.token.key_set_watch import KeySetWatch, check_location


class Document:
    """What the identity provider publishes, over HTTP."""

    def __init__(self) -> None:
        self.status = 200
        self.data = b"one"
        self.num_fetches = 0
        document = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                document.num_fetches += 1
                self.send_response(document.status)
                self.send_header("Content-Length", str(len(document.data)))
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()
                self.wfile.write(document.data)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"


@pytest.fixture
def document() -> Iterator[Document]:
    document = Document()
    thread = threading.Thread(target=document.server.serve_forever, args=(0.01,))
    thread.start()
    yield document
    document.server.shutdown()
    thread.join()
    document.server.server_close()


class Applied:
    def __init__(self) -> None:
        self.documents: list[bytes] = []

    def __call__(self, data: bytes) -> None:
        if data == b"bad":
            raise invalid_arg("it is bad")
        self.documents.append(data)


@contextlib.asynccontextmanager
async def running(watch: KeySetWatch) -> AsyncIterator[None]:
    task = asyncio.ensure_future(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_set_watch, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(key_set_watch, "RETRY_INTERVAL_S", 0.01)


async def test_follows_a_file(tmp_path: Path) -> None:
    path, applied = tmp_path / "keys.json", Applied()
    path.write_bytes(b"one")
    watch = KeySetWatch(str(path), applied)
    watch.load()
    assert applied.documents == [b"one"]
    async with running(watch):
        path.write_bytes(b"second")
        await until(lambda: applied.documents == [b"one", b"second"])
        path.write_bytes(b"bad")
        await until(lambda: not watch.is_good)
        path.unlink()
        await until(lambda: watch.num_failures >= 2)
        assert applied.documents == [b"one", b"second"]
        path.write_bytes(b"third one")
        await until(lambda: watch.is_good)
    assert applied.documents[-1] == b"third one"


def test_a_file_that_cannot_be_used_fails_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(NaiadError, match="cannot be read: No such file"):
        KeySetWatch(str(path), Applied()).load()
    path.write_bytes(b"bad")
    with pytest.raises(NaiadError, match="cannot be used: it is bad"):
        KeySetWatch(str(path), Applied()).load()
    path.write_bytes(b" " * (key_set_watch.MAX_BYTES + 1))
    with pytest.raises(NaiadError, match="has more than"):
        KeySetWatch(str(path), Applied()).load()


async def test_fetches_a_url_again(document: Document) -> None:
    applied = Applied()
    watch = KeySetWatch(document.url, applied, refresh_s=0.01)
    watch.load()
    async with running(watch):
        await until(lambda: document.num_fetches >= 3)
        assert applied.documents == [b"one"]
        document.data = b"two"
        await until(lambda: applied.documents == [b"one", b"two"])
        for status in (500, 302):
            document.status, watch.num_failures = status, 0
            await until(lambda: watch.num_failures > 0)
            assert not watch.is_good
        document.status, document.data = 200, b"three"
        await until(lambda: watch.is_good)
    assert applied.documents == [b"one", b"two", b"three"]


async def test_a_url_that_does_not_respond_does_not_fail_the_start(document: Document) -> None:
    applied = Applied()
    document.status = 503
    watch = KeySetWatch(document.url, applied)
    watch.load()
    assert (watch.is_good, watch.num_failures, applied.documents) == (False, 1, [])
    async with running(watch):
        document.status = 200
        await until(lambda: watch.is_good)
    assert applied.documents == [b"one"]


async def test_unknown_keys_cause_one_fetch_per_interval(document: Document) -> None:
    now_s = [0.0]
    watch = KeySetWatch(document.url, Applied(), refresh_s=1000, clock_s=lambda: now_s[0])
    watch.load()
    async with running(watch):
        watch.on_unknown_key()
        await asyncio.sleep(0.05)
        assert document.num_fetches == 1
        now_s[0] = key_set_watch.UNKNOWN_KEY_INTERVAL_S
        for _ in range(20):
            watch.on_unknown_key()
            await asyncio.sleep(0.001)
        await until(lambda: document.num_fetches == 2)
        for _ in range(20):
            watch.on_unknown_key()
        await asyncio.sleep(0.05)
    assert document.num_fetches == 2


async def test_reread_does_not_wait(document: Document) -> None:
    watch = KeySetWatch(document.url, Applied(), refresh_s=1000)
    watch.load()
    async with running(watch):
        watch.reread()
        await until(lambda: document.num_fetches == 2)


def test_keys_are_not_fetched_without_tls() -> None:
    with pytest.raises(NaiadError, match="without TLS"):
        check_location("http://login.example.com/keys")
    check_location("http://127.0.0.1:8080/keys")
    check_location("https://login.example.com/keys")
    check_location("keys.json")
