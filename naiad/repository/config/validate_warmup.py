"""Rules for warm-up samples that need no file; part of validate."""

from __future__ import annotations

from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.problem_list import ProblemList
from naiad.repository.config.source_map import entry_path
from naiad.repository.config.validate_io import dims_text


def check_warmup(config: ModelConfig, found: ProblemList) -> None:
    if config.HasField("ensemble_scheduling"):
        return
    for index, sample in enumerate(config.model_warmup):
        for name, warm_input in sorted(sample.inputs.items()):
            path = entry_path(f"model_warmup[{index}].inputs", name)
            if any(dim < 0 for dim in warm_input.dims):
                message = f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
                shown = f"dims {dims_text(warm_input.dims)}"
                found.add(
                    "warmup-dims",
                    message,
                    f"{path}.dims",
                    found=shown,
                    expected="real sizes, without the batch dimension",
                )
            if warm_input.data_type not in BY_CONFIG_NUMBER:
                message = f"warmup setting must specify 'data_type' for input '{name}' in sample '{sample.name}' for {config.name}"
                found.add(
                    "warmup-type",
                    message,
                    path,
                    found="no data_type",
                    expected="the input's data type",
                )
