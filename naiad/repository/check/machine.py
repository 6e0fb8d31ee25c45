"""What only this machine lacks: GPUs, packages, interpreters, cores. Part of check.

In:  a completed config and its directory. Out: problems; their codes are in LACKING.
Rule: a repository for a GPU server is checked on laptops and in CI, so these are warnings. They are
      errors of `naiad check --load`, which loads the models here.
"""

from __future__ import annotations

import os

from naiad.backends.served_config import CPU_CORES
from naiad.errors import NaiadError
from naiad.machine.cpus import usable_cpus
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config import ModelConfigFile
from naiad.repository.config.problem import Problem, ProblemList
from naiad.repository.config.source_map import entry_path
from naiad.repository.config.worker_settings import PYTHON_VERSION, read_worker_settings
from naiad.repository.environment.interpreters import find_python
from naiad.repository.environment.python_environment import environment_fault, named_environment

LACKING = frozenset(
    {
        "instance-gpus",
        "backend-package",
        "engine-package",
        "python-import",
        "environment-missing",
        "python-version",
        "cpu-cores",
    }
)


def check_machine(file: ModelConfigFile) -> list[Problem]:
    """Environments that the model itself should bring are among the problems, too."""
    found = ProblemList(file.lines)
    config = file.config
    try:
        settings = read_worker_settings(config)
    except NaiadError:
        return []  # a rule of the config has said so
    if config.backend == "python":
        _check_environment(file, settings.python_version, found)
    if settings.num_cores > usable_cpus():
        found.add(
            "cpu-cores",
            f"parameter '{CPU_CORES}' of model '{config.name}' is {settings.num_cores}, but the "
            f"server may use {usable_cpus()} here",
            entry_path("parameters", CPU_CORES),
            found=str(settings.num_cores),
            expected=f"at most {usable_cpus()} on this machine",
        )
    return found.problems


def _check_environment(file: ModelConfigFile, version: str, found: ProblemList) -> None:
    config = file.config
    named = named_environment(config, file.directory.path)
    if named is None:
        if version:
            _check_version(config, version, found)
        return
    path = entry_path("parameters", named.parameter)
    if version:
        found.add(
            "environment",
            f"model '{config.name}' has both '{named.parameter}' and '{PYTHON_VERSION}', but an "
            "environment has a Python of its own; remove one of them",
            path,
            found="both",
            expected="one of the two",
        )
    elif fault := environment_fault(named.path):
        found.add(
            "environment" if named.is_in_model else "environment-missing",
            named.message(fault),
            path,
            found=fault,
            expected="the folder of an environment, an archive of one, or an interpreter",
            fix=f"put it at {named.path}",
        )


def _check_version(config: ModelConfig, version: str, found: ProblemList) -> None:
    try:
        find_python(version, os.environ.get("PATH", os.defpath), config.name)
    except NaiadError as error:
        found.add(
            "python-version",
            error.message,
            entry_path("parameters", PYTHON_VERSION),
            found=f"Python {version}",
            expected="a Python that this machine has",
        )


def check_instance_count(config: ModelConfig, found: ProblemList) -> None:
    """More processes than cores are allowed, and seldom meant."""
    for index, group in enumerate(config.instance_group):
        if group.kind == ModelInstanceGroup.KIND_CPU and group.count > 2 * usable_cpus():
            found.add(
                "many-instances",
                f"{group.count} instances on {usable_cpus()} cores: each is a process that loads "
                "the model",
                f"instance_group[{index}].count",
                found=str(group.count),
                expected="about as many as there are cores",
            )
