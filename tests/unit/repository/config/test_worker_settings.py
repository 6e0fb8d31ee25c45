"""Parameters that concern the processes of a model."""

from __future__ import annotations

import pytest

from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.source_map import SourceMap
from naiad.repository.config.worker_settings import (
    WorkerSettings,
    check_worker_settings,
    read_worker_settings,
)


def config(**parameters: str) -> ModelConfig:
    made = ModelConfig(name="m")
    for name, value in parameters.items():
        made.parameters[name].string_value = value
    return made


def test_a_config_without_them_has_none() -> None:
    assert read_worker_settings(config(other="1")) == WorkerSettings()


def test_reads_cores_memory_variables_and_the_version() -> None:
    settings = read_worker_settings(
        config(
            CPU_CORES="2",
            MEMORY_LIMIT="1.5 GiB",
            PYTHON_VERSION="3.12",
            **{"ENV:http_proxy": "", "ENV:MODE": " fast "},
        )
    )
    assert settings == WorkerSettings(2, 3 << 29, {"http_proxy": "", "MODE": " fast "}, "3.12")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CPU_CORES", "0", "a whole number of cores, at least 1"),
        ("CPU_CORES", "1.5", "a whole number of cores, at least 1"),
        ("CPU_CORES", "9" * 30, "a whole number of cores, at least 1"),
        ("MEMORY_LIMIT", "4", "a size of at least 64MiB, such as 4GiB"),
        ("MEMORY_LIMIT", "plenty", "a size of at least 64MiB, such as 4GiB"),
        ("MEMORY_LIMIT", "9e30GiB", "a size of at least 64MiB, such as 4GiB"),
        ("PYTHON_VERSION", "2.7", "a version such as 3.12"),
        ("PYTHON_VERSION", "3.12.1", "a version such as 3.12"),
        ("ENV:", "x", "ENV: and a name of letters, digits and '_', such as ENV:MY_OPTION"),
        ("ENV:A=B", "x", "ENV: and a name of letters, digits and '_', such as ENV:MY_OPTION"),
    ],
)
def test_a_wrong_value_is_a_problem_of_its_parameter(name: str, value: str, expected: str) -> None:
    wrong = config(**{name: value})
    found = ProblemList(SourceMap())
    check_worker_settings(wrong, found)
    message = f"parameter '{name}' of model 'm' is '{value}', expected {expected}"
    assert [(problem.path, problem.message) for problem in found.problems] == [
        (f'parameters["{name}"]', message)
    ]
    with pytest.raises(NaiadError) as error:
        read_worker_settings(wrong)
    assert error.value.message == message


def test_an_ensemble_has_no_process() -> None:
    ensemble = config(CPU_CORES="1")
    ensemble.ensemble_scheduling.SetInParent()
    with pytest.raises(NaiadError, match="an ensemble has no process of its own"):
        read_worker_settings(ensemble)
