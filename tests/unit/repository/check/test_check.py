"""`naiad check` as a whole: valid repositories have no findings, and problems of several models or
of the repository itself are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.repository.check.check import Finding, check_repository, render_findings
from naiad.repository.config.config import ConfigOptions
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
    add(tmp_path, "imported", source="from implementation import TritonPythonModel\n")
    add(tmp_path, "starred", source="from implementation import *\n")
    add(
        tmp_path,
        "derived",
        source="from base import Base\nclass TritonPythonModel(Base):\n    pass\n",
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
    add(tmp_path, "m", "instance_group { kind: KIND_GPU gpus: 3 }\n" + IO)
    assert codes(check_repository([tmp_path])) == [("warning", "m", "instance-gpus")]
    assert codes(check_repository([tmp_path], options=ConfigOptions(gpus=(0,)))) == [
        ("error", "m", "instance-gpus")
    ]


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
