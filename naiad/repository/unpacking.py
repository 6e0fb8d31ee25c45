"""Reads archives and tables of contents that somebody has sent, in a process with limits. Runs as
`python -m naiad.repository.unpacking`.

In:  an archive and a folder that does not exist yet, or files to be checked. Out: what is in the
     folder now, or NaiadError and no folder.
Rule: the server itself reads nothing of what is in an archive.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeAlias

import msgspec

from naiad.errors import Code, NaiadError
from naiad.repository.deploy.unpack import MAX_RATIO, unpack_upload
from naiad.repository.deploy.upload_check import check_content
from naiad.repository.environment.archive import unpack
from naiad.repository.reading_process import LIMIT_S, Limits, Readers, answer

MEMORY_BYTES = 256 << 20
ENVIRONMENT_MEMORY_BYTES = 1 << 30
"""The dictionary of an archive of xz may have hundreds of megabytes."""
MIN_CPU_S = 10
BYTES_PER_CPU_S = 5 << 20
"""A slow processor unpacks more than this."""


class UnpackUpload(msgspec.Struct, frozen=True, tag=True):
    archive: str
    folder: str
    shown: str
    max_bytes: int
    allow_pickle: bool


class UnpackEnvironment(msgspec.Struct, frozen=True, tag=True):
    archive: str
    folder: str


class CheckFiles(msgspec.Struct, frozen=True, tag=True):
    files: dict[str, str]
    """The name to show -> the file."""


Reading: TypeAlias = UnpackUpload | UnpackEnvironment | CheckFiles


class ReadingResult(msgspec.Struct, frozen=True):
    files: dict[str, int] = {}
    """Path in the folder -> size."""
    error: str = ""
    code: str = ""
    details: str = ""


def read_in_process(readers: Readers, reading: Reading, what: str) -> dict[str, int]:
    """Blocks. Raises NaiadError; then the folder does not exist."""
    folder = None if isinstance(reading, CheckFiles) else Path(reading.folder)
    try:
        content = readers.run("naiad.repository.unpacking", reading, what, _limits(reading))
        result = msgspec.json.decode(content, type=ReadingResult)
        if result.error:
            raise NaiadError(Code[result.code], result.error, details=result.details)
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return result.files


def _limits(reading: Reading) -> Limits:
    if isinstance(reading, CheckFiles):
        return Limits(MEMORY_BYTES, MIN_CPU_S)
    packed_bytes = Path(reading.archive).stat().st_size
    is_upload = isinstance(reading, UnpackUpload)
    most = packed_bytes * (MAX_RATIO // 10 if is_upload else 10)
    cpu_s = MIN_CPU_S + most // BYTES_PER_CPU_S
    memory = MEMORY_BYTES if is_upload else ENVIRONMENT_MEMORY_BYTES
    return Limits(memory, cpu_s, max(LIMIT_S, cpu_s))


def read(reading: Reading) -> ReadingResult:
    try:
        return ReadingResult(_read(reading))
    except NaiadError as error:
        # A name in an archive may have bytes that are no text.
        text = error.message.encode(errors="backslashreplace").decode()
        cause = repr(error.__cause__).encode(errors="backslashreplace").decode()
        return ReadingResult(error=text, code=error.code.name, details=cause)


def _read(reading: Reading) -> dict[str, int]:
    match reading:
        case CheckFiles(files):
            for shown, file in files.items():
                check_content(Path(file), shown, allow_pickle=False)
            return {}
        case UnpackEnvironment(archive, folder):
            unpack(Path(archive), Path(folder))
            return {}
        case UnpackUpload():
            return _read_upload(reading)


def _read_upload(reading: UnpackUpload) -> dict[str, int]:
    folder = Path(reading.folder)
    unpack_upload(Path(reading.archive), folder, reading.shown, reading.max_bytes)
    found: dict[str, int] = {}
    for member in sorted(folder.rglob("*")):
        if member.is_file():
            shown = member.relative_to(folder).as_posix()
            check_content(member, shown, allow_pickle=reading.allow_pickle)
            found[shown] = member.stat().st_size
    return found


if __name__ == "__main__":
    answer(Reading, read)
