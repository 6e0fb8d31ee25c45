import pytest

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config import ConfigOptions
from naiad.repository.config.problem import InvalidConfigError, ProblemList
from naiad.repository.config.source_map import SourceMap
from naiad.repository.config.validate_instances import check_instance_groups
from naiad.repository.load.failure import brief_reason, failure_summary

PYTHON = "KeyError: 'TOKEN'\n\nAt:\n  <frozen os>(679): __getitem__\n  model.py(54): initialize\n"


@pytest.mark.parametrize(
    ("message", "brief"),
    [
        (f"Internal: {PYTHON}", "KeyError 'TOKEN' (model.py:54)"),
        (
            f"version 1 is at UNAVAILABLE state: Internal: {PYTHON};",
            "KeyError 'TOKEN' (model.py:54)",
        ),
        (
            "Internal: ValueError: bad\n\nAt:\n  hub.py(3): get\n  model.py(5): initialize\n",
            "ValueError: bad (model.py:5)",
        ),
        ("ImportError: x\n\nAt:\n  other.py(3): <module>\n", "ImportError: x (other.py:3)"),
        (
            "load failed for model 'm': at least one version must be available\n",
            "at least one version must be available",
        ),
        ("x" * 500, "x" * 317 + "..."),
        ("", ""),
    ],
)
def test_a_reason_is_one_line_with_its_place(message: str, brief: str) -> None:
    assert brief_reason(message) == brief


def test_the_summary_names_every_model() -> None:
    assert (
        failure_summary({"llama7b": f"Internal: {PYTHON}"}, 3)
        == "1 of 3 models failed: llama7b: KeyError 'TOKEN' (model.py:54)"
    )
    assert failure_summary({"b": "no", "a": "gone"}, 2) == "2 of 2 models failed: a: gone; b: no"


def test_a_gpu_that_is_not_there_keeps_its_advice() -> None:
    """The longest text that everybody without a GPU meets."""
    config = ModelConfig(name="llama-python")
    config.instance_group.add(name="llama-python_0", kind="KIND_GPU", gpus=[0])
    found = ProblemList(SourceMap())
    check_instance_groups(config, ConfigOptions(), found)
    reason = brief_reason(InvalidConfigError(found.problems).message)
    assert reason.endswith("use KIND_CPU, or KIND_AUTO to take a GPU only where there is one)")
