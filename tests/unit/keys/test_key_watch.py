"""The running server follows its key file."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from naiad import log
from naiad.errors import NaiadError
from naiad.keys import key_change
from naiad.keys.key import utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile
from naiad.keys.key_table import KeyTable
from naiad.keys.key_watch import KeyWatch


def add(file: KeyFile, name: str) -> None:
    file.change(lambda document: key_change.create(document, NewKey(name=name), utc_now()).document)


@pytest.fixture
def watch(tmp_path: Path) -> KeyWatch:
    file = KeyFile(tmp_path / "keys.json")
    add(file, "one")
    watch = KeyWatch(file, KeyTable())
    watch.load()
    return watch


@contextlib.asynccontextmanager
async def running(watch: KeyWatch) -> AsyncIterator[None]:
    task = asyncio.ensure_future(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def changed(watch: KeyWatch, generation: int) -> None:
    async with asyncio.timeout(10):
        while watch.table.generation == generation:
            await asyncio.sleep(0.01)


async def failed(watch: KeyWatch, num_failures: int) -> None:
    async with asyncio.timeout(10):
        while watch.num_failures < num_failures:
            await asyncio.sleep(0.01)


async def test_follows_the_file(watch: KeyWatch) -> None:
    assert len(watch.table) == 1
    async with running(watch):
        generation = watch.table.generation
        add(watch.file, "two")
        await changed(watch, generation)
        assert len(watch.table) == 2


async def test_a_broken_file_keeps_the_last_good_keys(watch: KeyWatch) -> None:
    async with running(watch):
        good = watch.file.path.read_bytes()
        watch.file.path.write_bytes(b"{")
        await failed(watch, 1)
        assert not watch.is_good
        assert len(watch.table) == 1
        watch.file.path.unlink()
        await failed(watch, 2)
        assert len(watch.table) == 1
        generation = watch.table.generation
        watch.file.path.write_bytes(good)
        watch.file.path.chmod(0o600)
        await changed(watch, generation)
        assert watch.is_good


async def test_reread_does_not_wait_for_a_change(watch: KeyWatch) -> None:
    async with running(watch):
        generation = watch.table.generation
        status = os.stat(watch.file.path)
        watch.reread()
        await changed(watch, generation)
        assert os.stat(watch.file.path).st_mtime_ns == status.st_mtime_ns


def test_a_broken_file_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(b"[]")
    with pytest.raises(NaiadError, match="the key file is not valid"):
        KeyWatch(KeyFile(tmp_path / "keys.json"), KeyTable()).load()
    log.flush()


async def test_follows_a_secret_of_kubernetes(tmp_path: Path) -> None:
    """The kubelet swaps a link to a new folder; the file itself is a link, and read-only."""

    def write(folder: str, *names: str) -> None:
        (tmp_path / folder).mkdir()
        for name in names:
            add(KeyFile(tmp_path / folder / "keys.json"), name)
        (tmp_path / folder / "keys.json").chmod(0o440)
        (tmp_path / "new").symlink_to(folder)
        (tmp_path / "new").replace(tmp_path / "..data")

    write("..2026_1", "one")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    watch = KeyWatch(KeyFile(tmp_path / "keys.json"), KeyTable())
    watch.load()
    assert len(watch.table) == 1
    async with running(watch):
        generation = watch.table.generation
        write("..2026_2", "one", "two")
        await changed(watch, generation)
    assert len(watch.table) == 2
