"""Compares ModelConfig as JSON with what Triton 2.51 returned from GET /v2/models/M/config for the
same config.pbtxt.

triton_json/ contains the recordings. Known and intended differences: Triton prints the 64-bit
integers of `graph_spec` and of `initial_state` as strings, because its list of fields to convert is
incomplete; 2.51 has no `max_inflight_requests`; and it prints an ensemble's
`model_transaction_policy`, which Naiad sets later, when the ensemble's models are known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config import ConfigOptions, read_model_config
from naiad.repository.config.config_json import config_to_dict, config_to_json
from naiad.repository.config.config_override import parse_override

RECORDED = sorted((Path(__file__).parent / "triton_json").glob("*.json"))


def read(recorded: Path, tmp_path: Path) -> ModelConfig:
    model = tmp_path / recorded.stem
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").touch()
    (model / "config.pbtxt").write_bytes(recorded.with_suffix(".pbtxt").read_bytes())
    return read_model_config(model, options=ConfigOptions()).config


def without_oversights(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_oversights(key, element)
            for key, element in value.items()
            if key != "max_inflight_requests"
        }
    if isinstance(value, list):
        return [
            int(e)
            if name in ("dim", "dims") and isinstance(e, str)
            else without_oversights(name, e)
            for e in value
        ]
    return value


def ordered(value: Any) -> Any:
    """Converts dicts to lists of pairs, so that comparisons consider the order."""
    if isinstance(value, dict):
        return [(key, ordered(element)) for key, element in value.items()]
    return [ordered(element) for element in value] if isinstance(value, list) else value


@pytest.mark.parametrize("recorded", RECORDED, ids=[path.stem for path in RECORDED])
def test_prints_what_triton_prints(recorded: Path, tmp_path: Path) -> None:
    config = read(recorded, tmp_path)
    if config.HasField("ensemble_scheduling"):
        config.model_transaction_policy.decoupled = False
    expected = without_oversights("", json.loads(recorded.read_bytes()))
    got = without_oversights("", json.loads(config_to_json(config)))
    assert ordered(got) == ordered(expected)


@pytest.mark.parametrize("recorded", RECORDED, ids=[path.stem for path in RECORDED])
def test_the_json_is_read_back_as_a_load_override(recorded: Path, tmp_path: Path) -> None:
    config = read(recorded, tmp_path)
    again = parse_override(config_to_json(config))
    assert again.SerializeToString(deterministic=True) == config.SerializeToString(
        deterministic=True
    )


def test_there_are_recordings() -> None:
    assert len(RECORDED) >= 15


def test_whole_numbers_stay_numbers_and_maps_are_sorted() -> None:
    config = ModelConfig(name="m")
    config.dynamic_batching.max_queue_delay_microseconds = 2**64 - 1
    config.parameters["b"].string_value = "2"
    config.parameters["a"].string_value = "1"
    config.metric_tags["t"] = "v"
    printed = config_to_dict(config)
    assert printed["dynamic_batching"]["max_queue_delay_microseconds"] == 2**64 - 1
    assert list(printed["parameters"]) == ["a", "b"]
    assert "sequence_batching" not in printed
    assert printed["input"] == []
    assert b'"max_queue_delay_microseconds":18446744073709551615' in config_to_json(config)


def test_an_enum_number_without_a_name_is_printed_as_it_is() -> None:
    config = ModelConfig()
    config.input.add(name="x", data_type=77)
    assert config_to_dict(config)["input"][0]["data_type"] == 77


def test_doubles() -> None:
    config = ModelConfig()
    control = config.model_metrics.metric_control.add()
    control.histogram_options.buckets.extend([0.1, 100, 1 / 3, float("inf"), 1e300])
    buckets = config_to_dict(config)["model_metrics"]["metric_control"][0]["histogram_options"][
        "buckets"
    ]
    assert buckets == [0.1, 100, 1 / 3, "Infinity", 1e300]
    assert isinstance(buckets[1], int)
