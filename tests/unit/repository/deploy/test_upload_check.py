"""Tests which uploads are refused by their path, their contents or their archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.repository.deploy.unpack import unpack_upload
from naiad.repository.deploy.upload_check import check_content, check_path


@pytest.mark.parametrize("path", ["model.pt", "a/b/c.bin", "Größe.txt", "a..b/c"])
def test_ordinary_paths_pass(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "C:/a", ".git/x", "a/.b", "a\nb",
        "x" * 201,
    ],
)  # fmt: skip
def test_other_paths_are_refused(path: str) -> None:
    with pytest.raises(NaiadError, match="is refused"):
        check_path(path)


def archive(names: list[str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name in names:
            with warnings.catch_warnings(action="ignore"):  # of two members of one name
                file.writestr(name, b"x")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "is_refused"),
    [
        ("a.pkl", b"anything", True),
        ("a", pickle.dumps([1]), True),
        ("a.dat", pickle.dumps([1], protocol=2), True),
        ("a.safetensors", b"\x80\x04" + bytes(6) + b"{}.", False),
        ("weights.bin", b"\x80\x04 raw weights", False),
        ("model.pt", archive(["m/data.pkl", "m/constants.pkl", "m/code/x.py"]), False),
        ("model.pt", archive(["m/data.pkl", "m/data/0"]), True),
        ("pytorch_model.bin", archive(["m/data.pkl", "m/data/0"]), True),
        ("disguised.txt2", archive(["m/data.pkl", "m/data/0"]), True),
        ("model.py", b"import os", False),
        ("empty", b"", False),
    ],
)
def test_pickles_are_refused_unless_they_are_allowed(
    tmp_path: Path, name: str, content: bytes, is_refused: bool
) -> None:
    file = tmp_path / "upload"
    file.write_bytes(content)
    check_content(file, name, allow_pickle=True)
    if not is_refused:
        check_content(file, name, allow_pickle=False)
        return
    with pytest.raises(NaiadError, match="--console-allow-pickle"):
        check_content(file, name, allow_pickle=False)


def tar(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        member.size = len(content)
        file.addfile(member, io.BytesIO(content))
    return out.getvalue()


def link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("m/link")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def long_header(kind: bytes, num_bytes: int = 3 << 20) -> bytes:
    """An extended header, which tarfile reads whole before it shows the first member."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = kind, num_bytes
    return header.tobuf(tarfile.GNU_FORMAT) + b"a" * num_bytes


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tar.gz", tar(link(tarfile.SYMTYPE)), "is a link or a device"),
        ("a.tar.gz", tar(link(tarfile.LNKTYPE)), "is a link or a device"),
        ("a.tar.gz", tar(link(tarfile.FIFOTYPE)), "is a link or a device"),
        ("a.tar.gz", tar(tarfile.TarInfo("../x"), b"x"), "leads out of its folder"),
        ("a.tar.gz", tar(tarfile.TarInfo("x"), bytes(80 << 20)), "as a zip bomb does"),
        ("a.tar.gz", b"\x1f\x8b\x08 broken", "cannot be read"),
        ("a.zip", archive(["/etc/x"]), "it must be relative"),
        ("a.zip", archive(["x", "x"]), "'x' is in it twice"),
        ("a.zip", archive(["x", "x/y"]), "'x' is both a file and a folder"),
        ("a.zip", archive(["x/y", "x"]), "'x' is both a file and a folder"),
        ("a.tar", lzma.compress(b"x"), "compressed by xz, expected gzip, or none"),
        ("a.tar.gz", bz2.compress(b"x"), "compressed by bzip2, expected gzip, or none"),
        ("a.tar", long_header(tarfile.XHDTYPE), "the header of a member has more than 1048576"),
        ("a.tar", long_header(tarfile.XGLTYPE), "the header of a member has more than 1048576"),
        ("a.tar.gz", gzip.compress(long_header(b"L")), "the header of a member has more than"),
        ("a.tar.gz", gzip.compress(long_header(b"K")), "the header of a member has more than"),
        ("a.tar", b"", "cannot be read: empty file"),
    ],
)
def test_archives_that_are_dangerous_leave_nothing(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(NaiadError, match=message):
        unpack_upload(tmp_path / name, tmp_path / "out", name, 1 << 30)
    assert not (tmp_path / "out").exists()


def test_an_archive_is_unpacked_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(tar(tarfile.TarInfo("./m/1/model.py"), b"x" * 100))
    unpack_upload(tmp_path / "a.tar.gz", tmp_path / "out", "a.tar.gz", 100)
    assert (tmp_path / "out/m/1/model.py").read_bytes() == b"x" * 100
    with pytest.raises(NaiadError, match="more than 99 bytes"):
        unpack_upload(tmp_path / "a.tar.gz", tmp_path / "again", "a.tar.gz", 99)
