"""Drafts: what an upload leaves when it is refused, and that the other files of the draft stay."""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.machine.process_tree import is_zombie
from naiad.repository.deploy.draft import MAX_DRAFTS, MAX_OWN_DRAFTS, DraftLimits, Drafts
from naiad.repository.reading_process import Limits, Readers
from naiad.repository.unpacking import UnpackUpload, read_in_process
from tests.server.gates import eventually
from tests.unit.repository.deploy.test_upload_check import archive, long_header


@pytest.fixture
def drafts(tmp_path: Path) -> Drafts:
    return Drafts(tmp_path, DraftLimits())


def put(drafts: Drafts, draft: str, path: str, content: bytes) -> dict[str, int]:
    status = drafts.write(draft, path, 0, len(content), content)
    return {file.path: file.received for file in status.files}


def paths(drafts: Drafts, draft: str) -> list[str]:
    return sorted(drafts.complete_files(draft))


def below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_key_does_not_keep_others_from_deploying(drafts: Drafts) -> None:
    own = [drafts.create("greedy").id for _ in range(MAX_OWN_DRAFTS)]
    with pytest.raises(NaiadError, match="the key 'greedy' has 16 drafts already"):
        drafts.create("greedy")
    drafts.create("other")
    drafts.remove(own[0])
    drafts.create("greedy")
    # A folder of an earlier version of the server has no owner.
    for _ in range(MAX_DRAFTS - MAX_OWN_DRAFTS - 1):
        drafts.create()
    with pytest.raises(NaiadError, match="there are 64 drafts already"):
        drafts.create("third")


@pytest.mark.parametrize(
    ("kept", "members", "message"),
    [
        (["f"], ["f/x", "g"], "'f' would be a file of 'c.zip' and a folder"),
        (["f/x"], ["f", "g"], "'f' would be a file of 'c.zip' and a folder"),
        (["d/e/f"], ["g", "d/e"], "'d/e' would be a file of 'c.zip' and a folder"),
        (["g"], ["f", "g"], "'g' is both in 'c.zip' and next to it"),
        (["f"], ["a", "a"], "'a' is in it twice"),
    ],
)
def test_an_archive_that_does_not_fit_leaves_the_draft_as_it_was(
    drafts: Drafts, tmp_path: Path, kept: list[str], members: list[str], message: str
) -> None:
    draft = drafts.create().id
    for name in kept:
        put(drafts, draft, name, b"mine")
    before = paths(drafts, draft), below(tmp_path)
    with pytest.raises(NaiadError, match=message) as caught:
        put(drafts, draft, "c.zip", archive(members))
    assert str(tmp_path) not in caught.value.message
    assert (paths(drafts, draft), below(tmp_path)) == before
    # The draft still works.
    put(drafts, draft, "c.zip", archive(["other/model.py"]))
    assert paths(drafts, draft) == sorted([*kept, "other/model.py"])
    assert all(drafts.file(draft, name).read_bytes() == b"mine" for name in kept)


def test_a_file_that_is_half_there_goes_on_after_an_archive_was_unpacked(drafts: Drafts) -> None:
    draft = drafts.create().id
    drafts.write(draft, "weights", 0, 6, b"abc")
    put(drafts, draft, "c.zip", archive(["1/model.py"]))
    drafts.write(draft, "weights", 3, 6, b"def")
    assert drafts.file(draft, "weights").read_bytes() == b"abcdef"
    assert paths(drafts, draft) == ["1/model.py", "weights"]


@pytest.mark.parametrize(("first", "second"), [("f", "f/x"), ("d/f", "d"), ("d/e/f", "d/e")])
def test_a_file_and_a_folder_of_one_name(drafts: Drafts, first: str, second: str) -> None:
    draft = drafts.create().id
    put(drafts, draft, first, b"x")
    with pytest.raises(NaiadError, match="would be a file and a folder"):
        put(drafts, draft, second, b"y")
    drafts.remove_file(draft, first)
    assert put(drafts, draft, second, b"y") == {second: 1}


def test_what_the_system_refuses_is_said_without_its_words(
    drafts: Drafts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = drafts.create().id

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(NaiadError) as caught:
        put(drafts, draft, "c.zip", archive(["a"]))
    assert caught.value.code is Code.RESOURCE_EXHAUSTED
    assert caught.value.message == "'c.zip' cannot be unpacked: the disk of the repository is full"
    monkeypatch.undo()
    assert put(drafts, draft, "c.zip", archive(["a"])) == {"a": 1}


def test_183_kb_of_header_are_refused_before_they_are_read(tmp_path: Path) -> None:
    archive = tmp_path / "m.tar"
    archive.write_bytes(lzma.compress(long_header(tarfile.XHDTYPE, 64 << 20), preset=1))
    work = UnpackUpload(str(archive), str(tmp_path / "out"), "m.tar", 1 << 30, False)
    with pytest.raises(NaiadError, match="compressed by xz"):
        read_in_process(Readers(), work, "unpacking")


def test_names_that_are_no_text_are_refused_in_words(tmp_path: Path) -> None:
    archive = tmp_path / "m.tar"
    with tarfile.open(archive, "w", errors="surrogateescape") as packed:
        packed.addfile(tarfile.TarInfo(os.fsdecode(b"a\xff")), io.BytesIO())
    work = UnpackUpload(str(archive), str(tmp_path / "out"), "m.tar", 1 << 30, False)
    with pytest.raises(NaiadError, match="is refused"):
        read_in_process(Readers(), work, "unpacking")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(memory_bytes=24 << 20), "it took more than 24 MiB of memory"),
        (Limits(wall_s=0.001), "it took more than 0 s"),
    ],
)
def test_a_reader_is_limited(tmp_path: Path, limits: Limits, message: str) -> None:
    """Its table of contents has 100,000 entries, which take some 50 MiB."""
    archive = tmp_path / "m.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(100_000):
            packed.writestr(zipfile.ZipInfo(f"m/{number}"), b"")
    work = UnpackUpload(str(archive), str(tmp_path / "out"), "m.zip", 1 << 30, False)
    with pytest.raises(NaiadError, match=message):
        Readers().run("naiad.repository.unpacking", work, "it", limits)


def test_a_reader_ends_with_the_server(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.tar")  # it waits for somebody who writes
    code = f"""
import threading, time
from naiad.repository.reading_process import Readers
from naiad.repository.unpacking import UnpackUpload
readers = Readers()
work = UnpackUpload({str(tmp_path / "m.tar")!r}, {str(tmp_path / "out")!r}, "m.tar", 1, False)
run = threading.Thread(target=readers.run, args=["naiad.repository.unpacking", work, "it"])
run.start()
while not readers._processes:
    time.sleep(0.001)
print(next(iter(readers._processes)).pid, flush=True)
run.join()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        eventually((tmp_path / "out").exists, "the reader has begun")
        server.kill()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or is_zombie(pid), "the reader ends")
