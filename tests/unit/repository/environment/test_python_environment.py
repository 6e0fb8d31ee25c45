"""Python environments: which archives are unpacked and which are refused, which interpreter a model
gets, and where its packages come from."""

from __future__ import annotations

import asyncio
import io
import os
import stat
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.environment import probe as python_environment_probe
from naiad.repository.environment.archive import unpack
from naiad.repository.environment.probe import own_places, probe
from naiad.repository.environment.python_environment import PythonEnvironments, _requirements_key
from naiad.repository.reading_process import Readers
from naiad.repository.unpacking import UnpackEnvironment, read_in_process


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def directory(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    def write(*members: tuple[tarfile.TarInfo, bytes]) -> Path:
        path = tmp_path / "environment.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for info, content in members:
                archive.addfile(info, io.BytesIO(content))
        return path

    return write


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_valid_archive_is_unpacked(pack: Callable[..., Path], tmp_path: Path) -> None:
    archive = pack(
        directory("./"), directory("bin"), member("bin/python3.11", b"ELF", mode=0o755),
        symlink("bin/python", "python3.11"),
        member("./lib/a.so", b"x", mode=0o4777), hardlink("lib/b.so", "lib/a.so"),
        symlink("lib64", "lib"),
        symlink("lib/up", "../bin/python"),
        symlink("dangling", "nowhere/at/all"),
    )  # fmt: skip
    folder = tmp_path / "out"
    unpack(archive, folder)
    assert (folder / "bin/python").read_bytes() == b"ELF"
    assert os.access(folder / "bin/python", os.X_OK)
    assert (folder / "lib64/b.so").read_bytes() == b"x"
    assert stat.S_IMODE((folder / "lib/a.so").stat().st_mode) == 0o700, (
        "no setuid, nothing for others"
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


OUTSIDE: dict[str, list[tuple[tarfile.TarInfo, bytes]]] = {
    "parent": [member("../evil", b"x")],
    "parent inside": [member("a/../../evil", b"x")],
    "absolute": [member("/tmp/naiad-evil", b"x")],
    "backslash": [member("..\\evil", b"x")],
    "symlink to parent": [symlink("l", "..")],
    "symlink to absolute": [symlink("l", "/etc")],
    "symlink by detour": [directory("d"), symlink("d/l", ".."), symlink("x", "d/l/../..")],
    "symlink chain": [
        symlink("a", "b/.."),
        symlink("b", "c"),
        symlink("c", "."),
        symlink("e", "a/../../x"),
    ],
    "through a symlink": [symlink("l", ".."), member("l/evil", b"x")],
    "hard link to absolute": [hardlink("l", "/etc/passwd")],
    "hard link to parent": [hardlink("l", "../../x")],
    "hard link to a symlink": [
        symlink("s", "a"),
        member("a", b"x"),
        hardlink("l", "s"),
        member("s", b"", type=tarfile.SYMTYPE, linkname="a"),
    ],
    "character device": [member("dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
    "block device": [member("dev", type=tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "fifo": [member("fifo", type=tarfile.FIFOTYPE)],
    "long name": [member("n/" * 600 + "x", b"x")],
    "directory and link": [directory("d"), member("d/x", b"x"), symlink("d", "elsewhere")],
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_unsafe_members_are_refused(pack: Callable[..., Path], tmp_path: Path, case: str) -> None:
    archive = pack(member("good", b"x"), *OUTSIDE[case])
    root = tmp_path / "deep" / "down"
    root.mkdir(parents=True)
    with pytest.raises(
        NaiadError, match=r"the Python environment 'environment\.tar\.gz' cannot be unpacked"
    ):
        unpack(archive, root / "out")
    assert files_below(tmp_path) == {"environment.tar.gz", "deep", "deep/down"}, (
        "nothing is left, inside or outside"
    )
    assert not Path("/tmp/naiad-evil").exists()


def test_a_file_is_never_written_through_a_link(pack: Callable[..., Path], tmp_path: Path) -> None:
    """The link is first in the archive but would be created last. The file has created a directory
    of the same name by then, so the link is refused."""
    archive = pack(symlink("lib64", "lib"), directory("lib"), member("lib64/x", b"x"))
    with pytest.raises(NaiadError, match="is both a directory and a link"):
        unpack(archive, tmp_path / "out")


def test_sizes_and_counts_are_limited(pack: Callable[..., Path], tmp_path: Path) -> None:
    archive = pack(*(member(f"f{number}", b"0" * 1000) for number in range(10)))
    with pytest.raises(NaiadError, match="larger than allowed"):
        unpack(archive, tmp_path / "out", max_bytes=9999)
    with pytest.raises(NaiadError, match="too many members"):
        unpack(archive, tmp_path / "out", max_members=9)
    unpack(archive, tmp_path / "out", max_bytes=10_000, max_members=10)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00 torn"])
def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "environment.tar.gz").write_bytes(content)
    with pytest.raises(NaiadError, match="cannot be unpacked"):
        unpack(tmp_path / "environment.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_truncated_archive_is_refused(pack: Callable[..., Path], tmp_path: Path) -> None:
    archive = pack(member("a", os.urandom(100_000)), member("b", os.urandom(100_000)))
    archive.write_bytes(archive.read_bytes()[:150_000])
    with pytest.raises(NaiadError, match="cannot be unpacked"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stopping_server_ends_the_unpacking(pack: Callable[..., Path], tmp_path: Path) -> None:
    readers = Readers()
    readers.stop()
    work = UnpackEnvironment(str(pack(member("a", b"x"))), str(tmp_path / "out"))
    with pytest.raises(NaiadError, match="the server is stopping"):
        read_in_process(readers, work, "unpacking it")
    assert not (tmp_path / "out").exists()


# Interpreters.


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


async def test_the_servers_interpreter_lacks_nothing() -> None:
    found = await probe(Path(sys.executable), dict(os.environ), "m")
    assert (found.version, found.missing) == (sys.version_info[:3], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello", "its output is not understood"),
        ("echo 'cannot open shared object' >&2; exit 127", "cannot open shared object"),
        ("exit 3", "exit status 3"),
        (
            """echo '{"version": [3, 8, 1], "tag": "cpython-38", "missing": []}'""",
            "it is Python 3.8.1, but workers need 3.11 or later",
        ),
    ],
)
async def test_interpreters_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(
        NaiadError, match=f"the Python interpreter of model 'm' cannot be used: {message}"
    ):
        await probe(script(tmp_path / "python", text), {}, "m")


async def test_an_interpreter_that_hangs_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_environment_probe, "TIMEOUT_S", 0.05)
    with pytest.raises(NaiadError, match="it does not respond"):
        await probe(script(tmp_path / "python", "exec sleep 1000"), dict(os.environ), "m")


def test_the_server_finds_its_own_packages() -> None:
    places = own_places(["numpy", "msgspec", "no_such_package"])
    assert set(places) == {"numpy", "msgspec"}
    assert (Path(places["numpy"]) / "numpy" / "__init__.py").is_file()


# The environment of a model.


def config(**parameters: str) -> ModelConfig:
    result = ModelConfig(name="m", backend="python")
    for name, text in parameters.items():
        result.parameters[name].string_value = text
    return result


@pytest.fixture
def environments(tmp_path: Path) -> PythonEnvironments:
    return PythonEnvironments(tmp_path / "cache", os.environ)


async def test_a_model_without_parameters_uses_the_servers_interpreter(
    environments: PythonEnvironments, tmp_path: Path
) -> None:
    assert await environments.prepare(config(), tmp_path) is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("parameter", ["PYTHON_VENV", "EXECUTION_ENV_PATH"])
@pytest.mark.parametrize(
    "text", ["$$TRITON_MODEL_DIRECTORY/env", "env", "$$TRITON_MODEL_DIRECTORY/env/bin/python"]
)
async def test_a_model_may_name_its_own_environment(
    environments: PythonEnvironments, tmp_path: Path, parameter: str, text: str
) -> None:
    python = script(tmp_path / "env" / "bin" / "python", f'exec {sys.executable} "$@"')
    launch = await environments.prepare(config(**{parameter: text}), tmp_path)
    assert launch is not None
    assert launch.command[0] == str(python)
    assert launch.environment is not None
    assert launch.environment["PATH"].startswith(f"{tmp_path}/env/bin:")


@pytest.mark.parametrize("parameter", ["PYTHON_VENV", "EXECUTION_ENV_PATH"])
@pytest.mark.parametrize("text", ["$$TRITON_MODEL_DIRECTORY/env", "env", "../m/env"])
async def test_the_model_may_be_in_a_relative_repository(
    environments: PythonEnvironments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parameter: str,
    text: str,
) -> None:
    script(tmp_path / "models/m/env/bin/python", f'exec {sys.executable} "$@"')
    monkeypatch.chdir(tmp_path)
    launch = await environments.prepare(config(**{parameter: text}), Path("models/m"))
    assert launch is not None
    python = Path(launch.command[0])
    assert python.is_absolute()
    assert python.parent.parent.name == "env"


async def test_an_archive_may_be_in_a_relative_repository(
    environments: PythonEnvironments,
    pack: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack(member("bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode(), mode=0o755))
    monkeypatch.chdir(tmp_path.parent)
    named = {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"}
    assert await environments.prepare(config(**named), Path(tmp_path.name)) is not None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/no/such/place", "no such file or directory: /no/such/place"),
        ("$$TRITON_MODEL_DIRECTORY/e.tar.gz", "no such file or directory: m/e.tar.gz"),
        ("env", "no such file or directory: m/env"),
        ("empty", "there is no bin/python in it: m/empty"),
    ],
)
async def test_the_message_says_where_it_looked(
    environments: PythonEnvironments,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    shown: str,
) -> None:
    (tmp_path / "m" / "empty").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NaiadError) as error:
        await environments.prepare(config(EXECUTION_ENV_PATH=text), Path("m"))
    assert error.value.message.endswith(f"names no Python environment: {shown}")
    assert error.value.details.startswith("looked for '/")


@pytest.mark.parametrize("text", ["/no/such/place", "empty"])
async def test_a_missing_environment_is_refused(
    environments: PythonEnvironments, tmp_path: Path, text: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NaiadError, match="parameter 'PYTHON_VENV' of model 'm' names no Python environment: "
    ):
        await environments.prepare(config(PYTHON_VENV=text), tmp_path)


async def test_an_archive_is_unpacked_once(
    environments: PythonEnvironments, pack: Callable[..., Path], tmp_path: Path
) -> None:
    text = f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode()
    pack(member("bin/python", text, mode=0o755))
    parameters = {"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"}
    first, second = await asyncio.gather(
        *(environments.prepare(config(**parameters), tmp_path) for _ in range(2))
    )
    assert first == second
    assert first is not None
    assert Path(first.command[0]).parent.parent.parent == tmp_path / "cache"
    (Path(first.command[0]).parent / "mark").touch()
    again = await environments.prepare(config(**parameters), tmp_path)
    assert again is not None
    assert (Path(again.command[0]).parent / "mark").exists()


async def test_an_incomplete_environment_of_a_killed_server_is_replaced(
    environments: PythonEnvironments, pack: Callable[..., Path], tmp_path: Path
) -> None:
    pack(member("bin/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'.encode(), mode=0o755))
    parameters = {"EXECUTION_ENV_PATH": "environment.tar.gz"}
    first = await environments.prepare(config(**parameters), tmp_path)
    assert first is not None
    folder = Path(first.command[0]).parent.parent
    (folder / ".complete").unlink()
    (folder / "bin" / "python").write_text("torn")
    assert await environments.prepare(config(**parameters), tmp_path) == first


def test_requirements_are_identified_by_their_content(tmp_path: Path) -> None:
    keys = []
    for name, text in (
        ("a", "six\n"),
        ("b", "six\n"),
        ("c", "six==1.16.0\n"),
        ("d", "./x.whl\n"),
        ("e", "./x.whl\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text(text)
        keys.append(_requirements_key(tmp_path / name, Path(sys.executable)))
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4, "a file of the model is another one in another model"
    (tmp_path / "d" / "x.whl").touch()
    assert _requirements_key(tmp_path / "d", Path(sys.executable)) != keys[3]


async def test_a_version_that_the_machine_lacks_is_named_with_those_that_it_has(
    environments: PythonEnvironments, tmp_path: Path
) -> None:
    with pytest.raises(NaiadError) as error:
        await environments.prepare(config(), tmp_path, "3.29")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert "model 'm' asks for Python 3.29, which this machine does not have" in str(error.value)
    assert own in str(error.value)


async def test_a_version_and_an_environment_contradict_each_other(
    environments: PythonEnvironments, tmp_path: Path
) -> None:
    with pytest.raises(NaiadError, match="has both 'PYTHON_VENV' and 'PYTHON_VERSION'"):
        await environments.prepare(config(PYTHON_VENV="/opt/venv"), tmp_path, "3.12")
