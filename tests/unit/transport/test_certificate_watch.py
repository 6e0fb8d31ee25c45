"""Certificates that are replaced while a port is open."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.transport.certificate_watch import CertificateWatch
from naiad.transport.tls import HTTP1, TlsFiles
from tests.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("new"))


class Port:
    """The files of a port, of which the current ones are copies."""

    def __init__(self, folder: Path, made: Certificates, *, is_mutual: bool = False) -> None:
        self.folder = folder
        self.replace(made)
        cert, key, root = (str(folder / name) for name in ("server.pem", "server.key", "ca.pem"))
        self.watch = CertificateWatch(TlsFiles("http", cert, key, root, is_mutual), HTTP1)

    def replace(self, made: Certificates, *names: str) -> None:
        for name in names or ("server.pem", "server.key", "ca.pem"):
            shutil.copy(made.path(name), self.folder / "next")
            os.replace(self.folder / "next", self.folder / name)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=self.watch.context)
        async with server:
            yield server.sockets[0].getsockname()[1]


def trusting(made: Certificates, client: str = "", name: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=made.path("ca.pem"))
    context.set_alpn_protocols([HTTP1])
    context.check_hostname = name
    if client:
        context.load_cert_chain(made.path(f"{client}.pem"), made.path(f"{client}.key"))
    return context


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, context: ssl.SSLContext, name: str | None = "localhost") -> Stream:
    stream = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name or ""
    )
    try:
        await echoed(stream)
    except BaseException:
        stream[1].close()
        raise
    return stream


async def echoed(stream: Stream) -> None:
    stream[1].write(b"hello")
    assert await stream[0].readexactly(5) == b"hello"


async def test_new_connections_use_new_certificates_and_open_ones_live_on(
    tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    files = Port(tmp_path, old)
    async with files.open() as port:
        first = await connect(port, trusting(old))
        files.replace(new)
        files.watch.poll()
        files.watch.poll()
        await echoed(first)
        second = await connect(port, trusting(new))
        assert second[1].get_extra_info("ssl_object").selected_alpn_protocol() == HTTP1
        without_name = await connect(port, trusting(new, name=False), None)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect(port, trusting(old))
        await echoed(first)
        for _, writer in (first, second, without_name):
            writer.close()


async def test_clients_of_a_new_authority_are_let_in_and_those_of_the_old_one_are_not(
    tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    files = Port(tmp_path, old, is_mutual=True)
    async with files.open() as port:
        first = await connect(port, trusting(old, "client"))
        files.replace(new)
        files.watch.reread()
        second = await connect(port, trusting(new, "client"))
        stranger = trusting(new)
        stranger.load_cert_chain(old.path("client.pem"), old.path("client.key"))
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await connect(port, stranger)
        await echoed(first)
        for _, writer in (first, second):
            writer.close()


async def test_files_that_do_not_belong_together_change_nothing(
    tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    files = Port(tmp_path, old)
    async with files.open() as port:
        files.replace(new, "server.pem")
        files.watch.poll()
        files.watch.poll()
        with pytest.raises(NaiadError, match="is not the key of the certificate"):
            files.watch.reread()
        os.unlink(tmp_path / "server.pem")
        files.watch.poll()
        files.watch.poll()
        (await connect(port, trusting(old)))[1].close()
        files.replace(new)
        files.watch.poll()
        files.watch.poll()
        (await connect(port, trusting(new)))[1].close()


def test_files_are_read_when_they_have_settled(
    tmp_path: Path, old: Certificates, new: Certificates
) -> None:
    files = Port(tmp_path, old)
    before = files.watch._current
    files.watch.poll()
    assert files.watch._current is before
    files.replace(new, "server.pem")
    files.watch.poll()
    files.replace(new, "server.key", "ca.pem")
    files.watch.poll()
    assert files.watch._current is before
    files.watch.poll()
    assert files.watch._current is not before
