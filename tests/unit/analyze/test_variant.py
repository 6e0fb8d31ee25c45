"""Tests changed configurations and the files they are written to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from naiad.analyze.repository import (
    KEPT_FILE,
    check_models,
    write_back,
    write_variant,
    written_config,
)
from naiad.analyze.variant import (
    changed_config,
    config_text,
    dynamic_batching_text,
    override_json,
    total_instances,
)
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.config.pbtxt import parse_text
from naiad.settings.option import OptionError

WRITTEN = (
    'backend: "python"\nmax_batch_size: 4\n'
    'input { name: "A" data_type: TYPE_FP32 dims: 1 }\n'
    "dynamic_batching { preferred_batch_size: 4 }\n"
)


def config() -> ModelConfig:
    return parse_text(WRITTEN, ModelConfig, "m/config.pbtxt").message


def test_applies_values() -> None:
    changed = changed_config(
        config(),
        {
            "max_batch_size": 16,
            "instance_count": 3,
            "queue_delay_us": 250,
            "parameters.max_num_seqs": 64,
        },
    )
    assert changed.max_batch_size == 16
    assert list(changed.dynamic_batching.preferred_batch_size) == [], (
        "4 was filled in as the largest batch"
    )
    assert changed.dynamic_batching.max_queue_delay_microseconds == 250
    assert changed.parameters["max_num_seqs"].string_value == "64"
    assert (total_instances(changed), dynamic_batching_text(changed)) == ("3:AUTO", "250 us")
    assert config().max_batch_size == 4


def test_keeps_preferred_sizes_that_fit() -> None:
    chosen = config()
    chosen.dynamic_batching.preferred_batch_size[:] = [2, 4, 8]
    chosen.max_batch_size = 8
    assert list(
        changed_config(chosen, {"max_batch_size": 4}).dynamic_batching.preferred_batch_size
    ) == [2, 4]


def test_cpu_only() -> None:
    gpu = config()
    gpu.instance_group.add(kind=ModelInstanceGroup.KIND_GPU, count=1, gpus=[0])
    changed = changed_config(gpu, {"instance_count": 2}, is_cpu_only=True)
    assert total_instances(changed) == "2:CPU"
    assert not changed.instance_group[0].gpus


def test_any_path_of_the_configuration() -> None:
    changed = changed_config(config(), {"dynamic_batching.preserve_ordering": True})
    assert changed.dynamic_batching.preserve_ordering
    with pytest.raises(OptionError, match="model_config_parameters of"):
        changed_config(config(), {"dynamic_batching.bogus": 1})


def test_a_sequence_model_gets_no_dynamic_batching() -> None:
    sequence = ModelConfig(name="m", max_batch_size=4)
    sequence.sequence_batching.SetInParent()
    assert not changed_config(sequence, {"max_batch_size": 8}).HasField("dynamic_batching")


def test_texts() -> None:
    assert json.loads(override_json(config()))["max_batch_size"] == 4
    text = config_text(config(), "found\nhere")
    assert text.startswith("# found\n# here\n")
    assert parse_text(text, ModelConfig, "x").message == config()


def make_model(folder: Path) -> Path:
    model = folder / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("code")
    (model / "config.pbtxt").write_text(WRITTEN)
    return model


def test_writes_a_variant_that_can_be_served(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write_variant(tmp_path / "out", model, "m_config_0", config(), "best")
    variant = tmp_path / "out" / "m_config_0"
    assert (variant / "1" / "model.py").read_text() == "code"
    text = (variant / "config.pbtxt").read_text()
    assert parse_text(text, ModelConfig, "x").message.name == "m_config_0"


def test_write_back_keeps_the_old_file(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    changed = changed_config(written_config(model, ModelConfig()), {"max_batch_size": 16})
    assert write_back(model, changed, "best").name == KEPT_FILE
    write_back(model, changed_config(changed, {"max_batch_size": 32}), "better")
    assert (model / KEPT_FILE).read_text() == WRITTEN
    assert written_config(model, ModelConfig()).max_batch_size == 32


def test_rejects_models_that_do_not_exist(tmp_path: Path) -> None:
    make_model(tmp_path)
    check_models(tmp_path / "models", ["m"])
    with pytest.raises(OptionError, match="no model 'x'; its models are: m"):
        check_models(tmp_path / "models", ["x"])
    with pytest.raises(OptionError, match="is not a directory"):
        check_models(tmp_path / "none", ["m"])
