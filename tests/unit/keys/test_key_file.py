"""The key file: changed as a whole, whatever happens to the writer."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.keys import key_change
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile

NUM_KILLS = 40
"""bench/key_kills.py does it 1,000 times."""


def add(file: KeyFile, name: str) -> None:
    file.change(lambda document: key_change.create(document, NewKey(name=name), utc_now()).document)


def test_the_file_is_private_and_nothing_else_stays(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    add(file, "one")
    add(file, "two")
    assert [key.name for key in file.read().keys] == ["one", "two"]
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    add(file, "one")
    file.path.chmod(0o622)
    with pytest.raises(NaiadError, match=r"other users may change the key file .*`chmod 600"):
        file.read()


def test_a_missing_file_says_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="does not exist; create the first key with `naiad key"):
        KeyFile(tmp_path / "keys.json").read()


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    add(file, "one")
    before = file.path.read_bytes()

    def fail(document: KeyDocument) -> KeyDocument:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        file.change(fail)
    with pytest.raises(NaiadError, match="has the name 'one' already"):
        add(file, "one")
    assert file.path.read_bytes() == before


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: add(file, f"key {number}"), range(40)))
    assert len(file.read().keys) == 40


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: writing fails halfway."""
    file = KeyFile(tmp_path / "keys.json")
    for number in range(5):
        add(file, f"key {number}")
    before = file.path.read_bytes()
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(NaiadError, match="cannot be written and is unchanged: File too large"):
            add(file, "one more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert file.path.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"keys.json", "keys.json.lock"}


WRITER = """
import sys
from pathlib import Path
from tests.unit.keys.test_key_file import KeyFile, add
file = KeyFile(Path(sys.argv[1]))
print("ready", flush=True)
for number in range(10**6):
    add(file, f"{sys.argv[2]}-{number}")
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    file = KeyFile(path)
    add(file, "first")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for kill in range(NUM_KILLS // 8):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path), f"{kill}-{number}"],
                stdout=subprocess.PIPE,
                env=environment,
            )
            for number in range(2)
        ]
        for index, writer in enumerate(writers):
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.003 * index)
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
            file.read()
    add(file, "last")
    names = [key.name for key in file.read().keys]
    assert (names[0], names[-1]) == ("first", "last")
