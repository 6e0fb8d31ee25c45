"""`naiad check` and the server agree on every repository: on broken ones, on those that lack only
something of this machine, and on right ones. One process loads them all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from naiad import log, wiring
from naiad.cli.main import naiad
from naiad.core.clock import LoopClock
from naiad.instances.template_process import Templates
from naiad.repository.check.check import Severity, check_repository, render_findings
from naiad.repository.check.finding import Finding
from naiad.repository.load.loader import Loader
from naiad.repository.model_source import ModelSources
from naiad.repository.repository import Repository, RepositoryOptions
from naiad.repository.store import LocalStore
from naiad.settings import Settings
from naiad.tools.check_load import LoneServices
from tests import onnx_file
from tests.onnx_file import Constant, Node, Value
from tests.unit.repository.config.broken_case import GOOD_MODEL, read_cases

Files = dict[str, str | bytes]

LIMIT_S = 120.0
EXAMPLES = Path(__file__).parents[2] / "examples" / "repository"
MAIN = (
    *("add_sub", "async_execute", "auto_class", "auto_static", "classifier", "echo_text"),
    *("helper_imports", "identity_bytes", "identity_fp32", "optional_inputs", "repeat"),
    *("reshaped", "response_parameters", "types", "versions_all", "versions_specific"),
)

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
PYTHON = f'backend: "python" {IO}'
ONNX = onnx_file.identity("FP32", [-1, 4])
"""Input x, output y, and any batch."""
CACHED_STATE = """
sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [ 2 ]
  initial_state { name: "i" data_type: TYPE_FP32 dims: [ 2 ] data_file: "zeros" } } }
"""


def python(config: str = "", model: str = GOOD_MODEL, name: str = "m", **files: str) -> Files:
    return {
        f"{name}/config.pbtxt": PYTHON + config,
        f"{name}/1/model.py": model,
        **{f"{name}/{path}": text for path, text in files.items()},
    }


def onnx(config: str | None = None, content: bytes = ONNX, name: str = "m") -> Files:
    files: Files = {f"{name}/1/model.onnx": content}
    return files if config is None else {**files, f"{name}/config.pbtxt": config}


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'


def ensemble(part: str, size: int, inner: tuple[str, str] = ("x", "y")) -> Files:
    return {
        "e/1/.keep": "",
        "e/config.pbtxt": f"""
platform: "ensemble" max_batch_size: {size} {IO}
ensemble_scheduling {{ step {{ model_name: "{part}" model_version: -1
  input_map {{ key: "{inner[0]}" value: "x" }} output_map {{ key: "{inner[1]}" value: "y" }} }} }}
""",
    }


def warmup(rest: str) -> str:
    return f'model_warmup {{ name: "w" batch_size: 1 {rest} }}'


def warm_input(name: str, rest: str = "data_type: TYPE_FP32 dims: 4 zero_data: true") -> str:
    return f'inputs {{ key: "{name}" value {{ {rest} }} }}'


def agent(name: str, parameters: str = "") -> str:
    return f'model_repository_agents {{ agents {{ name: "{name}" {parameters} }} }}'


def zip_of(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return buffer.getvalue()


def without_batch() -> bytes:
    return onnx_file.identity("FP32", [2, 4])


BROKEN: dict[str, Files] = {
    "environment of the model is missing": python(
        parameter("EXECUTION_ENV_PATH", "$$TRITON_MODEL_DIRECTORY/env.tar.gz")
    ),
    "environment of the model without python": python(
        parameter("PYTHON_VENV", "env"), **{"env/readme": ""}
    ),
    "environment and a version": python(
        parameter("PYTHON_VENV", "/usr") + parameter("PYTHON_VERSION", "3.11")
    ),
    "version of Python for ONNX": onnx(parameter("PYTHON_VERSION", "3.11")),
    "ensemble allows larger batches than a file without config": {
        **onnx(name="bert"),
        **ensemble("bert", 16),
    },
    "ensemble names no output of the file": {
        **onnx(name="cls"),
        **ensemble("cls", 4, ("x", "softmax_0.tmp_0")),
    },
    "ensemble names no input of the file": {
        **onnx(name="cls"),
        **ensemble("cls", 4, ("pixels", "y")),
    },
    "ensemble differs in type from the file": {
        **onnx(name="cls", content=onnx_file.identity("FP64", [-1, 4])),
        **ensemble("cls", 4),
    },
    "ensemble differs in shape from the file": {
        **onnx(name="cls", content=onnx_file.identity("FP32", [-1, 5])),
        **ensemble("cls", 4),
    },
    "warm-up of an unknown input": python(warmup(warm_input("zzz"))),
    "warm-up leaves an input out": python(warmup("")),
    "warm-up of another type": python(
        warmup(warm_input("x", "data_type: TYPE_FP64 dims: 4 zero_data: true"))
    ),
    "warm-up of another shape": python(
        warmup(warm_input("x", "data_type: TYPE_FP32 dims: 5 zero_data: true"))
    ),
    "warm-up of too large a batch": python(
        "max_batch_size: 2 " + warmup(warm_input("x")).replace("batch_size: 1", "batch_size: 9")
    ),
    "warm-up of an input that the file does not have": onnx(warmup(warm_input("zzz"))),
    "warm-up file outside": python(
        warmup(warm_input("x", 'data_type: TYPE_FP32 dims: 4 input_data_file: "../config.pbtxt"'))
    ),
    "agent that is not there": python(agent("aging")),
    "checksum of another file": python(
        agent("checksum", f'parameters {{ key: "MD5:1/model.py" value: "{"0" * 32}" }}')
    ),
    "checksum of a missing file": python(
        agent("checksum", f'parameters {{ key: "MD5:1/no.py" value: "{"0" * 32}" }}')
    ),
    "257 instances": python("instance_group [ { count: 257 kind: KIND_CPU } ]"),
    "a time that is none": python(parameter("EXECUTION_TIMEOUT_SECS", "soon")),
    "a load time that is none": python(parameter("LOAD_TIMEOUT_SECS", "nan")),
    "labels that are a folder": {
        **python("").copy(),
        "m/config.pbtxt": PYTHON.replace(
            "dims: [ 4 ] } ]\n", 'dims: [ 4 ] label_filename: "1" } ]\n'
        ),
    },
    "characters of a shell": python('instance_group [ { name: "a;b" kind: KIND_CPU } ]'),
    "state smaller than its shape": python(CACHED_STATE, **{"initial_state/zeros": "1234"}),
    "levels without end": python(
        "max_batch_size: 2 dynamic_batching { priority_levels: 99999 default_priority_level: 1 }"
    ),
    "file of a version that is not served": {
        **python("version_policy { specific { versions: [ 1 ] } }"),
        "m/1/model.py": "def",
        "m/2/model.py": GOOD_MODEL,
    },
    "default_model_filename that is not there": python('default_model_filename: "other.py"'),
    "config that is a folder": {"m/1/model.py": GOOD_MODEL, "m/config.pbtxt/x": ""},
}

FRAMEWORKS: dict[str, Files] = {
    "ONNX: unknown input": onnx(PYTHON.replace("python", "onnxruntime").replace('"x"', '"z"')),
    "ONNX: unknown output": onnx(PYTHON.replace("python", "onnxruntime").replace('"y"', '"z"')),
    "ONNX: other type": onnx(
        f'backend: "onnxruntime" max_batch_size: 2 {IO.replace("FP32", "FP16", 1)}'
    ),
    "ONNX: other shape": onnx(
        f'backend: "onnxruntime" max_batch_size: 2 {IO.replace("[ 4 ]", "[ 5 ]", 1)}'
    ),
    "ONNX: batches of a model that has none": onnx("max_batch_size: 8", without_batch()),
    "ONNX: unknown mode": onnx(parameter("execution_mode", "7")),
    "ONNX: threads that are no number": onnx(parameter("intra_op_thread_count", "many")),
    "ONNX: unknown level": onnx("optimization { graph { level: 9 } }"),
    "ONNX: file cut off": onnx(content=ONNX[:-9]),
    "ONNX: not a model": onnx(content=b"garbage"),
    "ONNX: unknown operator": onnx(
        content=onnx_file.model(
            [Node("NoSuchOperator", ["x"], ["y"])],
            [Value("x", "FP32", [-1, 4])],
            [Value("y", "FP32", [-1, 4])],
        )
    ),
    "ONNX: weights of another size": onnx(
        content=onnx_file.model(
            [Node("MatMul", ["x", "w"], ["y"])],
            [Value("x", "FP32", [-1, 4])],
            [Value("y", "FP32", [-1, 4])],
            [Constant("w", np.zeros((5, 4), np.float32))],
        )
    ),
    "ONNX: weights in a file that is not there": onnx(
        content=onnx_file.model(
            [Node("MatMul", ["x", "w"], ["y"])],
            [Value("x", "FP32", [-1, 4])],
            [Value("y", "FP32", [-1, 4])],
            [Constant("w", np.zeros((4, 4), np.float32), "weights.bin")],
        )
    ),
    "LLM: no checkpoint": {
        "m/1/.keep": "",
        "m/config.pbtxt": 'backend: "llm"' + parameter("checkpoint", "./no-such"),
    },
    "LLM: unknown parameter": {
        "m/1/.keep": "",
        "m/config.pbtxt": 'backend: "llm"' + parameter("chekpoint", "."),
    },
    "LLM: wrong value": {
        "m/1/.keep": "",
        "m/config.pbtxt": 'backend: "llm"' + parameter("max_num_seqs", "0"),
    },
    "vLLM: broken arguments": {"m/1/model.json": "{", "m/config.pbtxt": 'backend: "vllm"'},
    "torch: a pickle": {
        "m/1/model.pt": zip_of("m/data.pkl"),
        "m/config.pbtxt": f'backend: "pytorch"{IO}',
    },
    "torch: garbage": {"m/1/model.pt": b"garbage", "m/config.pbtxt": f'backend: "pytorch"{IO}'},
}
"""Each needs an interpreter that imports a framework."""

LACKING: dict[str, Files] = {
    "a GPU": python("instance_group [ { kind: KIND_GPU gpus: [ 63 ] } ]"),
    "two GPUs": python("instance_group [ { kind: KIND_GPU gpus: [ 62, 63 ] } ]"),
    "a GPU of a group of no kind": python("instance_group [ { gpus: [ 63 ] } ]"),
    "a GPU for ONNX": onnx("instance_group [ { kind: KIND_GPU gpus: [ 63 ] } ]"),
    "a module": python(model="import no_such_module\n" + GOOD_MODEL),
    "a module of a package": python(model="from no_such.part import x\n" + GOOD_MODEL),
    "an archive elsewhere": python(parameter("EXECUTION_ENV_PATH", "/no/such/env.tar.gz")),
    "an environment elsewhere": python(parameter("PYTHON_VENV", "/no/such/venv")),
    "a version of Python": python(parameter("PYTHON_VERSION", "3.99")),
    "cores": python(parameter("CPU_CORES", "5000")),
}
CHECKSUM = hashlib.md5(GOOD_MODEL.encode(), usedforsecurity=False).hexdigest()
AUTO_MODEL = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(4)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [4]})
        return config
    def execute(self, requests):
        return []
"""
OWN_PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
RIGHT: dict[str, Files] = {
    "ONNX without a config": onnx(),
    "ONNX with a config": onnx(f'backend: "onnxruntime" max_batch_size: 8 {IO}'),
    "ONNX with half a config": onnx("dynamic_batching { } instance_group [ { count: 1 } ]"),
    "ONNX with a warm-up": onnx("max_batch_size: 4 " + warmup(warm_input("x"))),
    "ONNX without batches": onnx(content=without_batch()),
    "an ensemble of a file": {**onnx(name="cls"), **ensemble("cls", 4)},
    "an ensemble of a model that completes itself": {
        "auto/1/model.py": AUTO_MODEL,
        **ensemble("auto", 4),
    },
    "an ensemble of an ensemble": {
        **onnx(name="cls"),
        **ensemble("inner", 4),
        **{
            name.replace("e/", "inner/", 1): content for name, content in ensemble("cls", 4).items()
        },
    },
    "an environment of its own": python(
        parameter("PYTHON_VENV", "$$TRITON_MODEL_DIRECTORY/env"),
        **{"env/bin/python": OWN_PYTHON},
    ),
    "a checksum": python(
        agent("checksum", f'parameters {{ key: "MD5:1/model.py" value: "{CHECKSUM}" }}')
    ),
    "a state from a file": python(CACHED_STATE, **{"initial_state/zeros": "12345678"}),
    "cores, memory and variables": python(
        parameter("CPU_CORES", "1") + parameter("MEMORY_LIMIT", "4GiB") + parameter("ENV:A", "b")
    ),
    "wheels": python(**{"wheels/readme": ""}),
    "priorities": python(
        "max_batch_size: 2 dynamic_batching { priority_levels: 3 default_priority_level: 2 }"
    ),
}
"""Tried with the models of `main`, which show what Python models can do, and the examples."""
CORPUS = {
    case.name: dict[str, str | bytes](case.files)
    for case in read_cases()
    if " error" in case.expected.splitlines()[-1]
}


def write(files: Files, repository: Path) -> Path:
    for name, content in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(0o755)
    return repository


def serve_all(repositories: list[Path]) -> list[dict[str, str]]:
    """Starts a server on each repository in turn, without its ports: the models that fail, and
    why."""

    async def run() -> list[dict[str, str]]:
        loop, settings = asyncio.get_running_loop(), Settings()
        templates = Templates(loop, wiring.worker_setup(settings, os.environ))
        try:
            return [await serve(path, settings, templates, loop) for path in repositories]
        finally:
            templates.close()

    return asyncio.run(run())


async def serve(
    path: Path, settings: Settings, templates: Templates, loop: asyncio.AbstractEventLoop
) -> dict[str, str]:
    loader = Loader(LoopClock(loop), templates, LoneServices(), wiring.load_options(settings))
    sources = ModelSources([LocalStore(path)], wiring.config_options(settings))
    repository = Repository(sources, loader, RepositoryOptions())
    try:
        async with asyncio.timeout(LIMIT_S):
            return (await repository.start()).failures
    finally:
        await repository.stop()


def check(path: Path) -> list[Finding]:
    return check_repository([path], should_open=True)


class Verdicts:
    """What check and the server say about each of these repositories."""

    def __init__(
        self, cases: dict[str, Files], folder: Path, paths: dict[str, Path] | None = None
    ) -> None:
        log.configure(log.LogSettings(log_info=False, log_warning=False, log_error=False))
        self.paths = {
            name: write(files, folder / str(number))
            for number, (name, files) in enumerate(cases.items())
        } | (paths or {})
        self.findings = {name: check(path) for name, path in self.paths.items()}
        failures = serve_all(list(self.paths.values()))
        self.failures = dict(zip(self.paths, failures, strict=True))
        log.configure(log.LogSettings())

    def errors(self, name: str) -> list[Finding]:
        return [one for one in self.findings[name] if one.severity is Severity.ERROR]

    def text(self, name: str) -> str:
        return f"{render_findings(self.findings[name])}\nserver: {self.failures[name]}"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return Verdicts({**CORPUS, **BROKEN}, tmp_path_factory.mktemp("broken"))


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return Verdicts(LACKING, tmp_path_factory.mktemp("lacking"))


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory, repositories: Path) -> Verdicts:
    folder = tmp_path_factory.mktemp("right")
    paths = {"examples": EXAMPLES}
    for name in MAIN:
        (folder / name).mkdir()
        (folder / name / name).symlink_to(repositories / "main" / name)
        paths[name] = folder / name
    return Verdicts(RIGHT, folder, paths)


@pytest.mark.parametrize("name", [*RIGHT, *MAIN, "examples"])
def test_both_accept_a_right_repository(right: Verdicts, name: str) -> None:
    assert not right.errors(name), right.text(name)
    assert not right.failures[name], right.text(name)


def test_there_are_at_least_thirty_right_ones() -> None:
    assert len(RIGHT) + len(MAIN) + 1 >= 30


def test_there_are_at_least_sixty() -> None:
    assert len(LACKING) >= 10
    assert len({**CORPUS, **BROKEN}) >= 50


@pytest.mark.parametrize("name", [*CORPUS, *BROKEN])
def test_check_refuses_what_the_server_refuses(broken: Verdicts, name: str) -> None:
    _agree_that_it_is_broken(broken, name)


@pytest.mark.slow
def test_check_refuses_what_a_framework_refuses(tmp_path: Path) -> None:
    cases = {
        name: files
        for name, files in FRAMEWORKS.items()
        if find_spec("torch") is not None or not name.startswith(("LLM", "vLLM", "torch"))
    }
    verdicts = Verdicts(cases, tmp_path)
    for name in cases:
        _agree_that_it_is_broken(verdicts, name)


def _agree_that_it_is_broken(verdicts: Verdicts, name: str) -> None:
    assert verdicts.failures[name], (name, verdicts.text(name))
    assert verdicts.errors(name), (name, verdicts.text(name))
    assert {one.model for one in verdicts.errors(name)} & verdicts.failures[name].keys(), name


@pytest.mark.parametrize("name", LACKING)
def test_what_this_machine_lacks_is_a_warning(lacking: Verdicts, name: str) -> None:
    assert lacking.failures[name], lacking.text(name)
    assert not lacking.errors(name), lacking.text(name)
    assert lacking.findings[name], lacking.text(name)


def test_what_this_machine_lacks_is_an_error_of_a_load(tmp_path: Path) -> None:
    for number, files in enumerate(LACKING.values()):
        renamed = {f"m{number}{path[1:]}": content for path, content in files.items()}
        write(renamed, tmp_path)
    done = CliRunner().invoke(naiad, ["check", str(tmp_path)], standalone_mode=False)
    assert done.return_value == 0, done.output
    done = CliRunner().invoke(naiad, ["check", "--load", str(tmp_path)], standalone_mode=False)
    assert done.return_value == 1
    assert f"0 of {len(LACKING)} models loaded" in done.output
    assert done.output.count(": failed after ") == len(LACKING)
