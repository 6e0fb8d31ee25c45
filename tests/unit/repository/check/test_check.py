"""`naiad check` as a whole: valid repositories have no findings, and problems of several models or
of the repository itself are reported."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from naiad.machine.cpus import usable_cpus
from naiad.repository.check.check import Finding, check_repository, render_findings
from naiad.repository.check.layout import layout_hints
from naiad.repository.config.config import ConfigOptions
from tests import onnx_file
from tests.unit.repository.config.broken_case import GOOD_MODEL

IO = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]\noutput [ { name: "y" data_type: '
    "TYPE_FP32 dims: [ 16 ] } ]\n"
)


def add(repository: Path, name: str, config: str = IO, source: str = GOOD_MODEL) -> Path:
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(config)
    (model / "1" / "model.py").write_text(source)
    return model


def codes(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(finding.severity.value, finding.model, finding.problem.code) for finding in findings]


def test_valid_models_have_no_findings(tmp_path: Path) -> None:
    add(tmp_path, "plain", "max_batch_size: 8\n" + IO)
    add(tmp_path, "batching", "max_batch_size: 8 dynamic_batching { }\n" + IO)
    imported = add(tmp_path, "imported", source="from implementation import TritonPythonModel\n")
    (imported / "1" / "implementation.py").touch()
    starred = add(tmp_path, "starred", source="from implementation import *\n")
    (starred / "implementation.py").touch()
    add(
        tmp_path,
        "derived",
        source=(
            "import sys\nsys.path.append('x')\nfrom base import Base\nclass "
            "TritonPythonModel(Base):\n    pass\n"
        ),
    )
    add(tmp_path, "assigned", source="class TritonPythonModel:\n    execute = None\n")
    add(
        tmp_path,
        "completed",
        "",
        GOOD_MODEL + "    @staticmethod\n    def auto_complete_config(c):\n        return c\n",
    )
    add(
        tmp_path,
        "other_python",
        'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "e" } }\n' + IO,
        "print 'two'\n",
    )
    (tmp_path / "other_python" / "e" / "bin").mkdir(parents=True)
    (tmp_path / "other_python" / "e" / "bin" / "python").touch()
    step = (
        '{ step { model_name: "plain" model_version: -1 input_map { key: "x" value: "x" } '
        'output_map { key: "y" value: "y" } } }'
    )
    add(
        tmp_path,
        "ensemble",
        f'platform: "ensemble" max_batch_size: 8 {IO} ensemble_scheduling {step}',
    )
    (tmp_path / "README.md").touch()
    findings = check_repository([tmp_path])
    assert codes(findings) == []
    assert render_findings(findings, model_count=9) == "no problems found in 9 models\n"


def test_models_are_counted_in_the_summary(tmp_path: Path) -> None:
    add(tmp_path, "m", "max_batch_size: -1\n" + IO)
    assert render_findings(check_repository([tmp_path]), model_count=1).endswith(
        "\n\n1 error found in 1 model\n"
    )


def test_the_same_model_in_two_repositories(tmp_path: Path) -> None:
    for repository in ("a", "b"):
        add(tmp_path / repository, "m")
    add(tmp_path / "b", "n")
    findings = check_repository([tmp_path / "a", tmp_path / "b"])
    assert codes(findings) == [("error", "m", "duplicate-model")] * 2
    assert findings[0].problem.found == f"'m' also in {tmp_path / 'b'}"
    assert (
        f"{tmp_path / 'a' / 'm'}: error: model appears in two or more repositories\n"
        in render_findings(findings)
    )


def test_a_model_directory_is_not_a_repository(tmp_path: Path) -> None:
    model = add(tmp_path, "m")
    (finding,) = check_repository([model])
    assert finding.problem.code == "not-a-repository"
    assert finding.problem.fix == f"use its parent directory: {tmp_path}"


def test_a_missing_repository_and_an_empty_one_are_reported(tmp_path: Path) -> None:
    assert codes(check_repository([tmp_path / "nowhere", tmp_path])) == [
        ("error", "", "unreadable"),
        ("warning", "", "empty-repository"),
    ]


def test_gpus_of_this_machine_are_checked(tmp_path: Path) -> None:
    """Another machine may have them, so it is a warning."""
    add(tmp_path, "m", "instance_group { kind: KIND_GPU gpus: 3 }\n" + IO)
    for gpus in ((), (0,)):
        findings = check_repository([tmp_path], options=ConfigOptions(gpus=gpus))
        assert codes(findings) == [("warning", "m", "instance-gpus")]
    assert check_repository([tmp_path], options=ConfigOptions(gpus=(3,))) == []


def test_an_ensemble_of_a_broken_model_has_no_problem_of_its_own(tmp_path: Path) -> None:
    add(tmp_path, "a", "oops")
    step = (
        '{ step { model_name: "a" model_version: -1 input_map { key: "x" value: "x" } output_map '
        '{ key: "y" value: "y" } } }'
    )
    add(tmp_path, "e", f'platform: "ensemble" {IO} ensemble_scheduling {step}')
    assert {finding.model for finding in check_repository([tmp_path])} == {"a"}


def test_an_ensemble_of_a_model_that_completes_its_config_is_not_compared(tmp_path: Path) -> None:
    add(
        tmp_path,
        "a",
        "",
        GOOD_MODEL + "    @staticmethod\n    def auto_complete_config(c):\n        return c\n",
    )
    step = (
        '{ step { model_name: "a" model_version: -1 input_map { key: "q" value: "x" } output_map '
        '{ key: "r" value: "y" } } }'
    )
    add(tmp_path, "e", f'platform: "ensemble" {IO} ensemble_scheduling {step}')
    assert codes(check_repository([tmp_path])) == []


def test_a_backend_of_another_kind_is_an_error(tmp_path: Path) -> None:
    add(tmp_path, "m", 'backend: "abacus"\n' + IO)
    assert codes(check_repository([tmp_path])) == [("error", "m", "backend-unknown")]


def test_the_caller_may_name_further_backends(tmp_path: Path) -> None:
    add(tmp_path, "m", 'backend: "mine"\n' + IO)
    assert codes(check_repository([tmp_path], backends={"mine"})) == []
    assert codes(check_repository([tmp_path])) == [("error", "m", "backend-unknown")]


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.pbtext", IO), ("1/config.pbtxt", IO), ("Config.pbtxt", IO)],
)
def test_a_misplaced_configuration_is_reported(tmp_path: Path, name: str, text: str) -> None:
    model = add(tmp_path, "m")
    (model / "config.pbtxt").unlink()
    (model / name).write_text(text)
    assert ("warning", "m", "config-misplaced") in codes(check_repository([tmp_path]))


def test_initial_state_files(tmp_path: Path) -> None:
    state = 'state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: 4 '
    state += 'initial_state { name: "i" data_type: TYPE_FP32 dims: 4 data_file: "zeros" } }'
    model = add(tmp_path, "m", f"max_batch_size: 8 sequence_batching {{ {state} }}\n" + IO)
    assert codes(check_repository([tmp_path])) == [("error", "m", "data-file")]
    (model / "initial_state").mkdir()
    (model / "initial_state" / "zeros").write_bytes(bytes(15))
    (finding,) = check_repository([tmp_path])
    assert (
        finding.problem.message
        == "initial_state setting expects 16 bytes, but the data provided from zeros only has "
        "15 bytes."
    )
    (model / "initial_state" / "zeros").write_bytes(bytes(16))
    assert codes(check_repository([tmp_path])) == []


def test_the_example_in_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "config.md").read_text()
    _, _, shown = page.partition("$ naiad check models\n")
    text = (
        "max_batch_size: 8\nbackend: 'python'\ndynamic_batching {\n  preferred_batch_size: [ 4, "
        "16 ]\n}\n"
    )
    add(tmp_path / "models", "resnet", text + IO)
    monkeypatch.chdir(tmp_path)
    assert render_findings(check_repository([Path("models")])) == shown.partition("```")[0]


def test_a_module_that_is_not_installed_is_a_warning(tmp_path: Path) -> None:
    source = "import os\nimport nosuchlib.part\ntry:\n    import maybe\nexcept ImportError: pass\n"
    model = add(tmp_path, "m", source=source + GOOD_MODEL)
    (finding,) = check_repository([tmp_path])
    assert codes([finding]) == [("warning", "m", "python-import")]
    assert finding.problem.message == "No module named 'nosuchlib'"
    assert finding.problem.where == "m/1/model.py:2"
    (model / "requirements.txt").write_text("nosuchlib\n")
    assert check_repository([tmp_path]) == []


def test_a_backend_whose_package_is_missing_is_a_warning(tmp_path: Path) -> None:
    add_file(tmp_path, "m", "model.onnx", onnx_bytes())
    assert check_repository([tmp_path], is_installed=lambda package: True) == []
    (finding,) = check_repository([tmp_path], is_installed=lambda package: package != "onnxruntime")
    assert codes([finding]) == [("warning", "m", "backend-package")]
    assert finding.problem.fix == "pip install '.[onnx]'", "this is a checkout"


def onnx_bytes() -> bytes:
    return onnx_file.identity("FP32", [-1, 4])


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file is empty"),
        (b"garbage", "it does not parse as protobuf"),
        (b"\x08\x08", "it has no graph"),
        (onnx_bytes()[:-1], "it ends too early: 1 bytes are missing"),
        (onnx_bytes()[:40], "it ends too early: "),
        (b"\x08\x08\x3a\xff", "it does not parse as protobuf"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "it is a Git LFS pointer, not the file",
        ),
    ],
)
def test_a_broken_onnx_file_is_an_error(tmp_path: Path, content: bytes, fault: str) -> None:
    add_file(tmp_path, "m", "model.onnx", content)
    (finding,) = check_repository([tmp_path], is_installed=lambda package: True)
    assert codes([finding]) == [("error", "m", "onnx-file")]
    assert finding.problem.found.startswith(fault)


def torch_bytes(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (torch_bytes("m/code/x.py", "m/constants.pkl"), "no-shapes"),
        (torch_bytes("m/data.pkl"), "torch-pickle"),
        (torch_bytes("other"), "torch-file"),
        (b"garbage", "torch-file"),
    ],
)
def test_a_torch_file_that_cannot_be_served_as_it_is(
    tmp_path: Path, content: bytes, code: str
) -> None:
    add_file(tmp_path, "m", "model.pt", content)
    findings = check_repository([tmp_path], is_installed=lambda package: True)
    assert codes(findings) == [("error", "m", code)]


def test_torchscript_with_a_config_is_fine(tmp_path: Path) -> None:
    model = add_file(tmp_path, "m", "model.pt", torch_bytes("m/code/x.py", "m/constants.pkl"))
    (model / "config.pbtxt").write_text('backend: "pytorch"\n' + IO)
    assert check_repository([tmp_path], is_installed=lambda package: True) == []


def test_a_tensorrt_plan_says_what_to_serve_instead(tmp_path: Path) -> None:
    add_file(tmp_path, "m", "model.plan", b"x")
    (finding,) = check_repository([tmp_path])
    assert finding.problem.code == "backend-unknown"
    assert "ONNX" in finding.problem.fix


def add_file(repository: Path, name: str, file: str, content: bytes) -> Path:
    model = repository / name
    (model / "1").mkdir(parents=True)
    (model / "1" / file).write_bytes(content)
    return model


def add_llm(repository: Path, checkpoint: Path, backend: str = "llm") -> None:
    key = "engine_dir" if backend == "tensorrtllm" else "checkpoint"
    model = repository / "m"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        f'backend: "{backend}"\n'
        f'parameters {{ key: "{key}" value {{ string_value: "{checkpoint}" }} }}\n'
    )


def checkpoint_problem(
    repository: Path,
    packages: frozenset[str] = frozenset({"torch"}),
    code: tuple[str, str] = ("error", "checkpoint"),
) -> tuple[str, str]:
    (finding,) = check_repository([repository], is_installed=lambda package: package in packages)
    assert codes([finding]) == [(code[0], "m", code[1])]
    return finding.problem.message, finding.problem.fix or finding.problem.expected


def test_a_checkpoint_that_is_missing_or_incomplete(tmp_path: Path) -> None:
    add_llm(tmp_path / "r", tmp_path / "c")
    assert checkpoint_problem(tmp_path / "r")[0] == f"no checkpoint '{tmp_path / 'c'}'"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text('{"model_type": "llama"}')
    assert checkpoint_problem(tmp_path / "r")[0] == "checkpoint 'c' is not complete"
    (tmp_path / "c" / "model.safetensors").touch()
    assert check_repository([tmp_path / "r"], is_installed=lambda package: True) == []
    lacking = ("warning", "engine-package")
    fix = checkpoint_problem(tmp_path / "r", frozenset(), lacking)[1]
    assert fix == "pip install '.[llm]'"
    found = checkpoint_problem(tmp_path / "r", frozenset({"openvino_genai"}), lacking)[0]
    assert "no engine" in found


def test_a_compiled_engine_is_recognised(tmp_path: Path) -> None:
    add_llm(tmp_path / "r", tmp_path / "engine", "tensorrtllm")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "rank0.engine").touch()
    message, fix = checkpoint_problem(tmp_path / "r")
    assert message == "'engine' is a TensorRT-LLM engine, which only TensorRT-LLM can run"
    assert fix == "point engine_dir at the original checkpoint"


def test_a_model_without_a_config_is_not_a_repository_either(tmp_path: Path) -> None:
    add_file(tmp_path, "m", "model.py", b"")
    (finding,) = check_repository([tmp_path / "m"])
    assert finding.problem.code == "not-a-repository"
    assert layout_hints(tmp_path / "m") == [
        f"'{tmp_path / 'm'}' is a model, not a repository of models: "
        f"use --model-repository {tmp_path}"
    ]
    assert layout_hints(tmp_path) == []


def test_a_model_file_outside_of_a_version_directory(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.py").write_text(GOOD_MODEL)
    (finding,) = check_repository([tmp_path])
    assert finding.problem.fix == "move m/model.py to m/1/model.py"
    (hint,) = layout_hints(tmp_path)
    assert hint.endswith(f"is not in a version directory: move it to {tmp_path / 'm/1/model.py'}")


def test_an_empty_or_a_missing_repository_has_a_hint_or_none(tmp_path: Path) -> None:
    assert layout_hints(tmp_path)[0].startswith(f"'{tmp_path}': there are no models")
    assert layout_hints(tmp_path / "nowhere") == []


def test_a_model_file_in_the_repository_itself(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"x")
    place = tmp_path / "net" / "1" / "model.onnx"
    assert layout_hints(tmp_path)[0].endswith(f"; move {file} to {place}")
    (finding,) = check_repository([tmp_path])
    assert finding.problem.fix == f"move {file} to {place}"
    assert layout_hints(file) == [f"'{file}' is a file: serve it with --model {file}"]


def test_folders_that_the_model_names_are_no_versions(tmp_path: Path) -> None:
    named = 'parameters { key: "PYTHON_VENV" value { string_value: "env" } }\n'
    model = add(tmp_path, "m", named + IO)
    (model / "requirements.txt").write_text("--find-links=vendor\nsix\n")
    for name in ("wheels", "vendor", "env/bin", "other"):
        (model / name).mkdir(parents=True)
    (model / "env" / "bin" / "python").touch()
    (finding,) = check_repository([tmp_path])
    assert (finding.problem.code, finding.problem.found) == ("version-name", "other")


def test_an_environment_hides_what_its_interpreter_has(tmp_path: Path) -> None:
    """As with EXECUTION_ENV_PATH, the modules and the syntax are those of another Python."""
    for parameter in ("PYTHON_VENV", "EXECUTION_ENV_PATH"):
        text = f'parameters {{ key: "{parameter}" value {{ string_value: "env" }} }}\n'
        model = add(tmp_path, parameter, text + IO, "import nosuchlib\nprint 'two'\n" + GOOD_MODEL)
        (model / "env" / "bin").mkdir(parents=True)
        (model / "env" / "bin" / "python").touch()
    assert check_repository([tmp_path]) == []


def test_a_module_is_not_called_a_package(tmp_path: Path) -> None:
    add(tmp_path, "m", source="import slugify\n" + GOOD_MODEL)
    (finding,) = check_repository([tmp_path], is_installed=lambda package: False)
    assert finding.problem.fix.startswith("install the package that has the module 'slugify'")


def test_more_instances_than_cores_are_doubtful(tmp_path: Path) -> None:
    add(tmp_path, "m", f"instance_group {{ count: {2 * usable_cpus() + 1} kind: KIND_CPU }}\n{IO}")
    assert codes(check_repository([tmp_path])) == [("warning", "m", "many-instances")]
