"""`naiad check --load` on repositories whose models really start, and really fail."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from naiad.cli.main import naiad

GOOD = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
        return config
    def execute(self, requests):
        return []
    def finalize(self):
        open(__file__ + ".finalized", "w").close()
"""
BAD = (
    GOOD
    + """
    def initialize(self, args):
        self.token = {}["PRIVATE_REPO_TOKEN"]
"""
)


def add(repository: Path, name: str, source: str, config: str = "") -> Path:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(source)
    (repository / name / "config.pbtxt").write_text('backend: "python"\n' + config)
    return folder


def test_each_model_is_loaded_once(tmp_path: Path) -> None:
    good = add(tmp_path, "good", GOOD, "instance_group [ { count: 8 kind: KIND_CPU } ]")
    result = CliRunner().invoke(naiad, ["check", "--load", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert "good: loaded in " in result.output
    assert result.output.endswith("1 of 1 models loaded\n")
    assert (good / "model.py.finalized").exists()


def test_a_model_that_fails_is_reported_with_its_line(tmp_path: Path) -> None:
    add(tmp_path, "bad", BAD)
    add(tmp_path, "good", GOOD)
    add(tmp_path, "broken", "def\n" + GOOD)
    arguments = ["check", str(tmp_path)]
    assert CliRunner().invoke(naiad, arguments, standalone_mode=False).return_value == 1
    result = CliRunner().invoke(naiad, [*arguments, "--load"], standalone_mode=False)
    assert result.return_value == 1
    assert "KeyError 'PRIVATE_REPO_TOKEN' (model.py:14)" in result.output
    assert "Traceback (most recent call last):" in result.output
    assert "broken: not loaded: it has errors" in result.output
    assert result.output.endswith("1 of 3 models loaded\n")


ENSEMBLE = """
platform: "ensemble"
input [ { name: "a" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "b" data_type: TYPE_FP32 dims: [ 1 ] } ]
ensemble_scheduling { step { model_name: "good" model_version: -1
  input_map { key: "x" value: "a" } output_map { key: "OUTPUT" value: "b" } } }
"""


def test_an_ensemble_is_compared_with_what_its_models_say(tmp_path: Path) -> None:
    """Only a load tells the tensors of a Python model that completes its config."""
    add(tmp_path, "good", GOOD)
    for name, output in (("fits", "y"), ("wrong", "z")):
        (tmp_path / name / "1").mkdir(parents=True)
        text = ENSEMBLE.replace("OUTPUT", output)
        (tmp_path / name / "config.pbtxt").write_text(text)
    checked = CliRunner().invoke(naiad, ["check", str(tmp_path)], standalone_mode=False)
    assert checked.return_value == 0, checked.output
    assert "ensemble fits is not compared with good, which names its tensors" in checked.output
    result = CliRunner().invoke(naiad, ["check", "--load", str(tmp_path)], standalone_mode=False)
    assert result.return_value == 1
    assert "fits: fits its 1 model\n" in result.output
    assert "wrong: failed after 0.0 s: in ensemble wrong, ensemble tensor b is mapped from " in (
        result.output
    )
    assert "one of the outputs of good: y" in result.output
    assert result.output.endswith("2 of 3 models loaded\n")


def test_backends_of_a_folder_are_known(tmp_path: Path) -> None:
    (tmp_path / "backends" / "shout").mkdir(parents=True)
    (tmp_path / "backends" / "shout" / "model.py").write_text(GOOD)
    (tmp_path / "models" / "m" / "1").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "shout"\n')
    command = ["check", "--load", str(tmp_path / "models")]
    assert CliRunner().invoke(naiad, command, standalone_mode=False).return_value == 1
    command.append(f"--backend-directory={tmp_path / 'backends'}")
    result = CliRunner().invoke(naiad, command, standalone_mode=False)
    assert result.return_value == 0, result.output
    assert result.output.endswith("1 of 1 models loaded\n")
