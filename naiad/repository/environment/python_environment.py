"""The interpreter of a Python model: the server's own, unless the model asks for another one.

In:  a model's config and directory. Out: how to start an interpreter for its workers, or None for
     the server's own.
EXECUTION_ENV_PATH  names the folder of an environment, or an archive of one (conda-pack).
PYTHON_VENV         names the folder of a virtual environment, or an interpreter.
requirements.txt    in the model's directory: the server creates an environment with these packages
                    in addition to its own, once for each content of the file.
PYTHON_VERSION      the version of that environment. One of another version than the server's does
                    not see the server's packages.
The first two parameters may contain $$TRITON_MODEL_DIRECTORY. Packages that a worker needs and the
environment lacks come from the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import msgspec

from naiad import log
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.files.private_folder import private_folder
from naiad.instances.template_process import Launch, launch_interpreter
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.environment.install import installer, run_quietly
from naiad.repository.environment.interpreters import find_python
from naiad.repository.environment.probe import Interpreter, own_places, own_tag, probe
from naiad.repository.reading_process import Readers
from naiad.repository.unpacking import UnpackEnvironment, read_in_process
from naiad.repository.watch.fingerprint import fingerprint

EXECUTION_ENV_PATH = "EXECUTION_ENV_PATH"
PYTHON_VENV = "PYTHON_VENV"
MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
REQUIREMENTS = "requirements.txt"
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
COMPLETE = ".complete"
LOCK_RETRY_S = 0.1


class PythonEnvironments:
    def __init__(
        self, cache: Path, environment: Mapping[str, str], *, should_install: bool = True
    ) -> None:
        """The folder `cache` is created when it is needed. `environment` holds the variables that
        models see. Without `should_install`, a requirements.txt has no effect."""
        self._cache = cache
        self._environment = environment
        self._should_install = should_install

    async def prepare(
        self, config: ModelConfig, model_dir: Path, python_version: str = ""
    ) -> Launch | None:
        """Raises NaiadError. This can take minutes if packages have to be installed."""
        found = await self._find(config, model_dir, python_version)
        if found is None:
            return None
        executable, variables = found
        interpreter = await probe(executable, variables, config.name)
        missing = await self._missing(interpreter, executable, config.name)
        return launch_interpreter(str(executable), variables, missing)

    async def _find(
        self, config: ModelConfig, model_dir: Path, python_version: str
    ) -> tuple[Path, dict[str, str]] | None:
        """Returns (interpreter, environment variables)."""
        named = named_environment(config, model_dir)
        if named is not None:
            if python_version:
                raise invalid_arg(
                    f"model '{config.name}' has both '{named.parameter}' and 'PYTHON_VERSION', but "
                    "an environment has a Python of its own; remove one of them"
                )
            path = named.path
            if named.is_archive:
                path = await self._unpacked(path)
            if fault := environment_fault(path):
                raise NaiadError(
                    Code.INVALID_ARG, named.message(fault), details=f"looked for '{path}'"
                )
            return _interpreter(path), self._variables(_folder_of(path))
        if (self._should_install and (model_dir / REQUIREMENTS).is_file()) or python_version:
            base = Path(sys.executable)
            if python_version:
                search_path = self._environment.get("PATH", os.defpath)
                base = await asyncio.to_thread(
                    find_python, python_version, search_path, config.name
                )
            folder = await self._from_requirements(config.name, model_dir, base)
            return folder / "bin" / "python", self._variables(folder)
        return None

    def _variables(self, folder: Path) -> dict[str, str]:
        """The environment variables of models, with those that `activate` would set."""
        variables = {
            name: value
            for name, value in self._environment.items()
            if name not in ("PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
        }
        variables["PATH"] = f"{folder / 'bin'}:{variables.get('PATH', os.defpath)}"
        if (folder / "pyvenv.cfg").is_file():
            variables["VIRTUAL_ENV"] = str(folder)
        elif (folder / "conda-meta").is_dir():
            variables["CONDA_PREFIX"] = str(folder)
            libraries = variables.get("LD_LIBRARY_PATH")
            variables["LD_LIBRARY_PATH"] = f"{folder / 'lib'}{':' + libraries if libraries else ''}"
        return variables

    # Environments that the model names.

    async def _unpacked(self, archive: Path) -> Path:
        folder = self._folder() / _archive_key(archive)
        async with self._creating(folder) as is_complete:
            if is_complete:
                return folder
            log.info(f"unpacking the Python environment '{archive.name}'")
            readers = Readers()
            work = UnpackEnvironment(str(archive), str(folder))
            what = f"unpacking the Python environment '{archive.name}'"
            try:
                await asyncio.to_thread(read_in_process, readers, work, what)
            except asyncio.CancelledError:
                readers.stop()
                raise
            await self._relocate(folder)
            (folder / COMPLETE).touch()
        return folder

    async def _relocate(self, folder: Path) -> None:
        """Runs the script of conda-pack that writes the folder's path into the files."""
        script = folder / "bin" / "conda-unpack"
        if script.is_file():
            try:
                await run_quietly(
                    [str(folder / "bin" / "python"), str(script)], folder, "conda-unpack failed"
                )
            except NaiadError as error:
                log.warning(f"{error.message}; the environment is used without this step")

    # Environments that the server creates.

    async def _from_requirements(self, model: str, model_dir: Path, base: Path) -> Path:
        """`base` is the interpreter that the environment is made with."""
        folder = self._folder() / _requirements_key(model_dir, base)
        async with self._creating(folder) as is_complete:
            if not is_complete:
                await self._make_venv(model, model_dir, base, folder)
        return folder

    async def _make_venv(self, model: str, model_dir: Path, base: Path, folder: Path) -> None:
        what = f"the requirements of model '{model}' could not be installed"
        has_requirements = self._should_install and (model_dir / REQUIREMENTS).is_file()
        install = installer(folder / "bin" / "python") if has_requirements else []
        if install is None:
            raise invalid_arg(f"{what}: the server has neither pip nor uv")
        verb = "installing the requirements" if has_requirements else "creating the environment"
        log.info(f"{verb} of model '{model}'")
        try:
            await run_quietly(
                [str(base), "-P", "-m", "venv", "--without-pip", str(folder)], model_dir, what
            )
            if base == Path(sys.executable):
                _add_packages_of_server(folder)
            if has_requirements:
                await run_quietly([*install, "-r", REQUIREMENTS], model_dir, what)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / COMPLETE).touch()

    async def _missing(
        self, interpreter: Interpreter, executable: Path, model: str
    ) -> dict[str, str]:
        """Each package that a worker needs and this interpreter lacks -> its folder."""
        if not interpreter.missing:
            return {}
        if interpreter.tag == own_tag():
            return own_places(interpreter.missing)
        folder = self._folder() / f"support-{interpreter.tag}"
        async with self._creating(folder) as is_complete:
            if not is_complete:
                await self._fetch_support(interpreter, executable, model, folder)
        return dict.fromkeys(interpreter.missing, str(folder))

    async def _fetch_support(
        self, interpreter: Interpreter, executable: Path, model: str, folder: Path
    ) -> None:
        names = ", ".join(interpreter.missing)
        install = installer(executable)
        what = (
            f"the Python {interpreter.version_text} of model '{model}' lacks {names}, "
            "which workers need, and it could not be fetched. "
            f"Install it there: pip install {' '.join(interpreter.missing)}"
        )
        if install is None:
            raise invalid_arg(what)
        log.info(f"fetching {names} for Python {interpreter.version_text}")
        try:
            await run_quietly(
                [*install, "--target", str(folder), "msgspec", "numpy"], self._folder(), what
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        (folder / COMPLETE).touch()

    # The cache.

    def _folder(self) -> Path:
        return private_folder(self._cache)

    @contextlib.asynccontextmanager
    async def _creating(self, folder: Path) -> AsyncIterator[bool]:
        """Locks the folder against other tasks and other servers, which wait. Yields whether the
        folder is complete already."""
        descriptor = os.open(
            folder.with_name(f".{folder.name}.lock"),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOCK_RETRY_S)
            is_complete = (folder / COMPLETE).is_file()
            if not is_complete:
                shutil.rmtree(folder, ignore_errors=True)  # A killed server left it.
            yield is_complete
        finally:
            os.close(descriptor)


class NamedEnvironment(msgspec.Struct, frozen=True):
    """What a parameter names: the folder of an environment, an archive, or an interpreter."""

    model: str
    parameter: str
    path: Path
    model_dir: Path

    @property
    def is_archive(self) -> bool:
        return self.path.name.endswith(ARCHIVES) and self.path.is_file()

    @property
    def is_in_model(self) -> bool:
        return Path(os.path.normpath(self.path)).is_relative_to(self.model_dir)

    @property
    def shown(self) -> str:
        """The path as clients may see it: that of a file of the model begins with its name."""
        if not self.is_in_model:
            return str(self.path)
        return f"{self.model}/{os.path.relpath(self.path, self.model_dir)}"

    def message(self, fault: str) -> str:
        return (
            f"parameter '{self.parameter}' of model '{self.model}' names no Python environment: "
            f"{fault}: {self.shown}"
        )


def named_environment(config: ModelConfig, model_dir: Path) -> NamedEnvironment | None:
    # A worker has another directory than the server.
    folder = model_dir.absolute()
    for parameter in (EXECUTION_ENV_PATH, PYTHON_VENV):
        text = config.parameters[parameter].string_value if parameter in config.parameters else ""
        if text:
            path = folder / text.replace(MODEL_DIRECTORY, str(folder))
            return NamedEnvironment(config.name, parameter, path, folder)
    return None


def environment_fault(path: Path) -> str:
    """Why this is neither an environment nor an interpreter; empty if it is one."""
    if path.is_file() or (path / "bin" / "python").exists():
        return ""
    return "there is no bin/python in it" if path.exists() else "no such file or directory"


def _interpreter(path: Path) -> Path:
    return path if path.is_file() else path / "bin" / "python"


def _folder_of(path: Path) -> Path:
    return path.parent.parent if path.is_file() else path


def default_cache() -> Path:
    home = (
        os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or Path.home()) / ".cache"
    )
    return Path(home) / "naiad" / "environments"


def _add_packages_of_server(folder: Path) -> None:
    """Makes the server's packages visible in a new virtual environment, even if the server runs in
    a virtual environment itself."""
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    packages = (
        folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    )
    (packages / "packages-of-the-server.pth").write_text("".join(f"{path}\n" for path in paths))


def _archive_key(archive: Path) -> str:
    status = archive.stat()
    return _key("archive", str(archive.resolve()), str(status.st_size), str(status.st_mtime_ns))


def _requirements_key(model_dir: Path, base: Path) -> str:
    """If the requirements name files of the model, a change of these files changes the key."""
    path = model_dir / REQUIREMENTS
    text = path.read_bytes() if path.is_file() else b""
    lines = [line.split(b"#")[0].strip() for line in text.splitlines()]
    has_files = any(
        line.startswith((b"-", b".", b"/"))
        or b"file:" in line
        or line.endswith((b".whl", b".gz", b".zip"))
        for line in lines
    )
    files = f"{model_dir} {fingerprint(model_dir).shared}" if has_files else ""
    return _key("requirements", text.hex(), files, sys.version, sys.prefix, str(base))


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:24]
