"""Rules for the instance groups of a configuration; part of validate."""

from __future__ import annotations

from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.config import ConfigOptions
from naiad.repository.config.problem import ProblemList
from naiad.repository.config.validate_io import TENSORRT_PLATFORM

Kind = ModelInstanceGroup.Kind
_NO_GPU = "use KIND_CPU, or KIND_AUTO to take a GPU only where there is one"


def check_instance_groups(config: ModelConfig, options: ConfigOptions, found: ProblemList) -> None:
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        message = f"must specify one or more 'instance group's for {config.name}"
        found.add(
            "instance-group", message, "instance_group", found="none", expected="at least one"
        )
    for index, group in enumerate(config.instance_group):
        path = f"instance_group[{index}]"
        subject = f"instance group {group.name} of model {config.name}"
        if group.kind == ModelInstanceGroup.KIND_GPU:
            _check_gpus(group, options, subject, path, found)
        elif group.gpus:
            kind = Kind.Name(group.kind)
            message = f"{subject} has kind {kind} but specifies one or more GPUs"
            shown = f"gpus {list(group.gpus)}"
            fix = (
                "use KIND_GPU, or remove gpus"
                if options.gpus
                else "remove gpus: this machine has none to use"
            )
            code = "instance-kind" if found.is_written(f"{path}.kind") else "instance-gpus"
            found.add(
                code,
                message,
                f"{path}.gpus",
                found=shown,
                expected="gpus only with KIND_GPU",
                fix=fix,
            )
        if group.profile and config.platform != TENSORRT_PLATFORM:
            message = (
                f"{subject} and platform {config.platform}specifies profile field which is only "
                "supported for TensorRT models"
            )
            found.add(
                "instance-profile",
                message,
                f"{path}.profile",
                found="a profile",
                expected="none",
                fix="remove profile",
            )


def _check_gpus(
    group: ModelInstanceGroup, options: ConfigOptions, subject: str, path: str, found: ProblemList
) -> None:
    available = ", ".join(str(gpu) for gpu in options.gpus)
    if not group.gpus:
        reason = "specifies no GPUs" if options.gpus else "no GPUs are available"
        fix = _NO_GPU
        message = f"{subject} has kind KIND_GPU but {reason}"
        found.add(
            "instance-gpus",
            message,
            f"{path}.kind",
            found="KIND_GPU",
            expected=f"a GPU; usable here: {available or 'none'}",
            fix=fix,
        )
    for at, gpu in enumerate(group.gpus):
        if gpu not in options.gpus:
            message = (
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at "
                "least the minimum required CUDA compute "
                f"compatibility of {options.min_compute_capability:.6f} are: {available}"
            )
            found.add(
                "instance-gpus",
                message,
                f"{path}.gpus[{at}]",
                found=f"gpu {gpu}",
                expected=f"one of: {available or 'none'}",
                fix="" if options.gpus else _NO_GPU,
            )
