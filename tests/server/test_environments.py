"""Models with their own interpreter: a virtual environment, another Python, an archive,
requirements; and the messages of failures."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, naiad, process_name, process_tree, wait_gone
from tests.server.model_folder import Control, put, write_model

EXPLICIT = "--model-control-mode=explicit"
SAY_PREFIX = "import sys; self.name = sys.prefix"


def parameter(name: str, value: object) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "models").mkdir()
    flags = [EXPLICIT, f"--backend-config=python,environment-directory={folder / 'cache'}"]
    with naiad([str(folder / "models")], flags, {"PIP_NO_INDEX": "1"}) as one:
        yield one


@pytest.fixture
def repository(folder: Path) -> Path:
    return folder / "models"


@pytest.fixture
def control(server: Server) -> Control:
    return Control(server)


@pytest.fixture(scope="module")
def venv(folder: Path) -> Path:
    """A virtual environment of the same Python, without packages."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True
    )
    return folder / "venv"


def instance_output(control: Control, model: str) -> str:
    status, message = control.infer(model)
    assert status == 200, message
    return message.split(maxsplit=2)[2]


def wheel(path: Path, name: str, text: str) -> None:
    """Writes a wheel of one module."""
    path.mkdir(parents=True, exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )


def test_a_virtual_environment(
    server: Server, control: Control, repository: Path, venv: Path
) -> None:
    """The worker gets the packages that it needs from the server, but no others."""
    (venv / "lib" / f"python3.{sys.version_info[1]}" / "site-packages" / "only_here.py").write_text(
        "word = 'here'"
    )
    initialize = (
        "import sys, only_here, importlib.util as u; self.name = f'{sys.prefix} {only_here.word} "
        '{u.find_spec("uvloop")}\''
    )
    write_model(repository, "venv", initialize=initialize, extra=parameter("PYTHON_VENV", venv))
    assert control.load("venv") == (200, "")
    assert instance_output(control, "venv") == f"{venv} here None"
    (worker,) = [pid for pid in process_tree(server.pid) if process_name(pid) == "venv_0"]
    template = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert all(
        "bootstrap.py" in Path(f"/proc/{pid}/cmdline").read_text() for pid in (worker, template)
    )
    control.unload("venv")
    assert wait_gone([worker, template]) == []


def test_instances_versions_and_restarts_with_another_interpreter(
    server: Server, control: Control, repository: Path, venv: Path
) -> None:
    extra = (
        parameter("PYTHON_VENV", venv)
        + "\nversion_policy { all { } }\ninstance_group [ { count: 2 kind: KIND_CPU } ]"
    )
    write_model(repository, "many", versions=(1, 2), initialize=SAY_PREFIX, extra=extra)
    assert control.load("many") == (200, "")
    put(
        repository / "many" / "config.pbtxt",
        (repository / "many" / "config.pbtxt").read_text().replace("count: 2", "count: 3"),
    )
    assert control.load("many") == (200, "")
    since = len(server.lines)
    subprocess.run(["kill", "-9", str(control.pid("many", "2"))], check=True)
    server.wait_for_line("worker of 'many_0_. is back|worker of 'many_0_.' is back", since=since)
    assert instance_output(control, "many") == str(venv)
    control.unload("many")


def other_python() -> str | None:
    """Finds a Python of another version that runs.

    Version managers replace versions that are not selected with scripts that fail.
    """
    for minor in (12, 13, 11, 14):
        places = [
            shutil.which(f"python3.{minor}"),
            *map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")),
        ]
        for python in filter(None, places):
            if (
                minor != sys.version_info[1]
                and subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode
                == 0
            ):
                return python
    return None


@pytest.fixture
def other_venv(tmp_path: Path) -> Path:
    python = other_python()
    if python is None:
        pytest.skip("there is no second Python here")
    subprocess.run([python, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    return tmp_path / "other"


def test_rejects_a_python_without_the_packages_of_workers(
    control: Control, repository: Path, other_venv: Path
) -> None:
    write_model(repository, "other", extra=parameter("PYTHON_VENV", other_venv))
    status, message = control.load("other")
    assert status == 400
    assert (
        "lacks msgspec, numpy, which workers need, and it could not be fetched. Install it "
        "there: pip install msgspec numpy" in message
    )
    assert str(other_venv) not in message


def test_another_python(folder: Path, other_venv: Path) -> None:
    fetched = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(other_venv / "bin" / "python"),
            "install",
            "-q",
            "msgspec",
            "numpy",
        ],
        check=False,
    )
    if fetched.returncode:
        pytest.skip("packages for the second Python cannot be fetched here")
    repository = folder / "of the other"
    write_model(
        repository,
        "m",
        initialize="import sys; self.name = f'{sys.version_info[1]} {sys.prefix}'",
        extra=parameter("PYTHON_VENV", other_venv),
    )
    with naiad([str(repository)], []) as server:
        control = Control(server)
        minor, _, prefix = instance_output(control, "m").partition(" ")
        assert (prefix, minor != str(sys.version_info[1])) == (str(other_venv), True)


def test_a_packed_environment(control: Control, repository: Path, tmp_path: Path) -> None:
    """The interpreter is a script, because a real one would be as large as Python itself."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nUNPACKED="$0" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    model = write_model(
        repository,
        "packed",
        initialize="self.name = os.environ['UNPACKED']",
        extra=parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/environment.tar.gz"),
    )
    with tarfile.open(model / "environment.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "bin", "bin")
    assert control.load("packed") == (200, "")
    assert instance_output(control, "packed").endswith("/bin/python")
    with tarfile.open(model / "environment.tar.gz", "w:gz") as archive:
        archive.add(python, "../../evil")
    status, message = control.load("packed")
    assert (status, "cannot be unpacked: '../../evil' is a path outside the folder" in message) == (
        400,
        True,
    )
    assert instance_output(control, "packed").endswith("/bin/python"), "the loaded version is kept"


def test_installs_requirements(server: Server, control: Control, repository: Path) -> None:
    """Wheels in the model's folder are installed once, without a network."""
    initialize = "import naiad_test_word; self.name = naiad_test_word.word"
    model = write_model(repository, "required", initialize=initialize)
    wheel(model / "wheels", "naiad_test_word", "word = 'first'")
    (model / "requirements.txt").write_text(
        "--find-links wheels\nnaiad_test_word==1.0\nnumpy  # the server has it\n"
    )
    assert control.load("required") == (200, "")
    assert instance_output(control, "required") == "first"
    since = len(server.lines)
    control.unload("required")
    assert control.load("required") == (200, "")
    assert not any("installing the requirements" in line for line in server.lines[since:])
    wheel(model / "wheels", "naiad_test_word", "word = 'second'")
    assert control.load("required") == (200, "")
    assert instance_output(control, "required") == "second"


def test_rejects_requirements_that_cannot_be_installed(
    control: Control, repository: Path, folder: Path
) -> None:
    model = write_model(repository, "unmet")
    (model / "requirements.txt").write_text("no-such-package==1.0\n")
    before = (
        {path.name for path in (folder / "cache").iterdir() if path.is_dir()}
        if (folder / "cache").exists()
        else set()
    )
    status, message = control.load("unmet")
    assert status == 400
    assert "the requirements of model 'unmet' could not be installed: " in message
    assert "No matching distribution found for no-such-package==1.0" in message
    assert {path.name for path in (folder / "cache").iterdir() if path.is_dir()} == before
    (model / "requirements.txt").unlink()
    assert control.load("unmet") == (200, "")


def test_installing_requirements_can_be_turned_off(tmp_path: Path) -> None:
    model = write_model(tmp_path, "m", initialize=SAY_PREFIX)
    (model / "requirements.txt").write_text("no-such-package==1.0\n")
    with naiad(
        [str(tmp_path)],
        ["--backend-config=python,install-requirements=false"],
        {"PIP_NO_INDEX": "1"},
    ) as server:
        assert instance_output(Control(server), "m") == sys.prefix


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("/no/such/place", "names no Python environment: no such file or directory"),
        ("1", "names no Python environment: there is no bin/python in it"),
        ("1/model.py", "cannot be used: Permission denied"),
    ],
)
def test_rejects_an_invalid_environment(
    control: Control, repository: Path, place: str, expected: str
) -> None:
    write_model(repository, "none", extra=parameter("PYTHON_VENV", place))
    status, message = control.load("none")
    assert (status, expected in message) == (400, True), message
