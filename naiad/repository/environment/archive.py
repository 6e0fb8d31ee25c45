"""A packed Python environment (conda-pack's tar.gz) -> a folder. Nothing in the archive can reach
outside of it.

In:  the archive, a folder that does not exist yet. Out: the folder, complete; or NaiadError and
     nothing.
Rules: names that leave the folder, devices, pipes and links that point outside are refused. Links
       are made last, so nothing is ever written through one. Sizes and counts are bounded, before
       the disk is full rather than after.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import threading
from pathlib import Path, PurePosixPath

from naiad.errors import NaiadError, invalid_arg

MAX_BYTES = 64 << 30
MAX_MEMBERS = 1_000_000
MAX_NAME_CHARS = 1024
BLOCK_BYTES = 1 << 20


def unpack(
    archive: Path,
    folder: Path,
    stop: threading.Event,
    *,
    max_bytes: int = MAX_BYTES,
    max_members: int = MAX_MEMBERS,
) -> None:
    """Blocks; `stop` ends it early."""
    folder.mkdir(mode=0o700)
    try:
        with tarfile.open(archive) as packed:
            _Unpacking(
                packed, folder, stop, min(max_bytes, shutil.disk_usage(folder).free), max_members
            ).run()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise _refused(archive, str(error) or type(error).__name__) from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _Unpacking:
    def __init__(
        self,
        packed: tarfile.TarFile,
        folder: Path,
        stop: threading.Event,
        max_bytes: int,
        max_members: int,
    ) -> None:
        self._packed = packed
        self._folder = folder
        self._stop = stop
        self._bytes_left = max_bytes
        self._members_left = max_members

    def run(self) -> None:
        links: list[tarfile.TarInfo] = []
        for member in self._packed:
            self._members_left -= 1
            if self._members_left < 0:
                raise ValueError("it has too many members")
            target = self._target(member.name)
            if member.isdir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif member.issym() or member.islnk():
                links.append(member)
            elif member.isreg():
                self._write(member, target)
            else:
                raise ValueError(f"'{member.name}' is neither a file, a directory nor a link")
        for member in links:
            self._link(member)
        for member in links:
            if member.issym():
                self._check_end(member.name)

    def _target(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if (
            len(name) > MAX_NAME_CHARS
            or name.startswith("/")
            or ".." in parts
            or "\\" in name
            or "\0" in name
        ):
            raise ValueError(f"'{name[:100]}' would leave its folder")
        return self._folder.joinpath(*parts)

    def _write(self, member: tarfile.TarInfo, target: Path) -> None:
        self._bytes_left -= member.size
        if self._bytes_left < 0:
            raise ValueError("it is larger than allowed, or than the disk has room for")
        source = self._packed.extractfile(member)
        assert source is not None
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o700 if member.mode & 0o100 else 0o600
        # A second member of the same name replaces the first, as tar does it.
        target.unlink(missing_ok=True)
        descriptor = os.open(
            target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode
        )
        with source, os.fdopen(descriptor, "wb") as file:
            while block := source.read(BLOCK_BYTES):
                if self._stop.is_set():
                    raise ValueError("the server is stopping")
                file.write(block)

    def _link(self, member: tarfile.TarInfo) -> None:
        place = self._target(member.name)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            raise ValueError(f"'{member.name}' is a directory and a link")
        place.unlink(missing_ok=True)
        if member.islnk():
            original = self._target(member.linkname)
            if original.is_symlink() or not original.is_file():
                raise ValueError(
                    f"'{member.name}' is a second name for what is no file of the archive"
                )
            os.link(original, place)
            return
        inside = os.path.normpath(os.path.join(os.path.dirname(member.name), member.linkname))
        if (
            len(member.linkname) > MAX_NAME_CHARS
            or os.path.isabs(member.linkname)
            or inside.split("/")[0] == ".."
        ):
            raise ValueError(f"the link '{member.name}' points outside")
        os.symlink(member.linkname, place)

    def _check_end(self, name: str) -> None:
        """Where a link leads after all others have been followed."""
        root = os.path.realpath(self._folder)
        end = os.path.realpath(self._folder / name)
        if end != root and not end.startswith(f"{root}/"):
            raise ValueError(f"the link '{name}' points outside")


def _refused(archive: Path, reason: str) -> NaiadError:
    return invalid_arg(f"the Python environment '{archive.name}' cannot be unpacked: {reason}")
