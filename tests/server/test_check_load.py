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
    add(tmp_path, "broken", "import nosuchlib\n" + GOOD)
    arguments = ["check", str(tmp_path)]
    assert CliRunner().invoke(naiad, arguments, standalone_mode=False).return_value == 1
    result = CliRunner().invoke(naiad, [*arguments, "--load"], standalone_mode=False)
    assert result.return_value == 1
    assert "KeyError 'PRIVATE_REPO_TOKEN' (model.py:14)" in result.output
    assert "Traceback (most recent call last):" in result.output
    assert "broken: not loaded: it has errors" in result.output
    assert result.output.endswith("1 of 3 models loaded\n")
