"""Applying what a model or a backend returns about itself to a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.pb.model_config_pb2 import TYPE_FP32, TYPE_INT8, ModelConfig
from naiad.repository.config.autocomplete import (
    apply_auto_complete,
    default_max_batch_size,
    fill_backend,
)
from naiad.repository.config.problem import InvalidConfigError


def test_only_the_allowed_fields_are_applied() -> None:
    config = ModelConfig(name="m", backend="python", max_batch_size=1)
    config.input.add(name="old", data_type=TYPE_INT8)
    config.parameters["kept"].string_value = "yes"
    apply_auto_complete(
        config,
        {
            "name": "other",
            "backend": "onnxruntime",
            "parameters": {},
            "instance_group": [{"count": 9}],
            "max_batch_size": 4,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["16"], "optional": True}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [16]}],
            "dynamic_batching": {},
            "model_transaction_policy": {"decoupled": True},
        },
    )
    assert (config.name, config.backend, len(config.instance_group)) == ("m", "python", 0)
    assert config.parameters["kept"].string_value == "yes"
    assert config.max_batch_size == 4
    assert [(i.name, i.data_type, list(i.dims), i.optional) for i in config.input] == [
        ("x", TYPE_FP32, [16], True)
    ]
    assert [o.name for o in config.output] == ["y"]
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    assert config.model_transaction_policy.decoupled


def test_a_given_scheduler_is_kept() -> None:
    config = ModelConfig(name="m", max_batch_size=8)
    config.sequence_batching.direct.SetInParent()
    apply_auto_complete(config, {"dynamic_batching": {"max_queue_delay_microseconds": 7}})
    assert config.WhichOneof("scheduling_choice") == "sequence_batching"


def test_fields_that_are_not_returned_are_kept() -> None:
    config = ModelConfig(name="m", max_batch_size=8)
    config.input.add(name="x")
    config.model_transaction_policy.decoupled = True
    apply_auto_complete(config, {})
    assert (
        config.max_batch_size,
        len(config.input),
        config.model_transaction_policy.decoupled,
    ) == (8, 1, True)


def test_an_invalid_result_is_refused_and_changes_nothing() -> None:
    config = ModelConfig(name="m", max_batch_size=8)
    with pytest.raises(InvalidConfigError, match="max_batch_size: found"):
        apply_auto_complete(config, {"max_batch_size": "many", "input": [{"name": "x"}]})
    assert (config.max_batch_size, len(config.input)) == (8, 0)


def test_default_max_batch_size() -> None:
    assert default_max_batch_size({}, "onnxruntime") == 4
    assert default_max_batch_size({"": {"default-max-batch-size": "16"}}, "onnxruntime") == 16
    backend_config = {
        "": {"default-max-batch-size": "16"},
        "onnxruntime": {"default-max-batch-size": "32"},
    }
    assert default_max_batch_size(backend_config, "onnxruntime") == 32
    assert default_max_batch_size(backend_config, "pytorch") == 16
    assert (
        default_max_batch_size({"onnxruntime": {"default-max-batch-size": "x"}}, "onnxruntime") == 4
    )


@pytest.mark.parametrize(
    ("given", "files", "platform", "file"),
    [
        ({}, ["model.pt2"], "torch_aoti", "model.pt2"),
        ({"backend": "pytorch"}, ["model.pt2"], "torch_aoti", "model.pt2"),
        ({"backend": "pytorch"}, ["model.pt", "model.pt2"], "pytorch_libtorch", "model.pt"),
        ({"backend": "pytorch"}, [], "pytorch_libtorch", "model.pt"),
        ({"platform": "torch_aoti"}, ["model.pt"], "torch_aoti", "model.pt2"),
        (
            {"backend": "pytorch", "default_model_filename": "net.pt2"},
            ["model.pt2"],
            "pytorch_libtorch",
            "net.pt2",
        ),
    ],
)
def test_which_file_of_a_pytorch_model(
    given: dict[str, Any], files: list[str], platform: str, file: str
) -> None:
    config = ModelConfig(name="m", **given)
    fill_backend(config, "m", files)
    assert (config.backend, config.platform, config.default_model_filename) == (
        "pytorch",
        platform,
        file,
    )
