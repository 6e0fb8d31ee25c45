"""What the config of a load request may change where it may not bring files.

The walk covers every field of the proto: a new field is refused, and these tests fail, until
somebody has decided.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from naiad.backends.llm.options import OWN_NAMES
from naiad.errors import Code
from naiad.llm.engine_settings import EngineSettings
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.config_override import parse_override
from naiad.repository.config.override_check import (
    FACTS,
    OPEN,
    OverrideRefusedError,
    OverrideRights,
    drop_facts,
    require_open,
    require_references,
)
from tests.config_fields import PATHS, Path, decide

CLOSED = {
    *("name", "platform", "backend", "runtime", "version_policy", "input", "output"),
    *("batch_input", "batch_output", "optimization", "sequence_batching", "ensemble_scheduling"),
    *("instance_group", "default_model_filename", "cc_model_filenames", "metric_tags"),
    *("parameters", "model_warmup", "model_operations", "model_transaction_policy"),
    *("model_repository_agents", "model_metrics", "sequence_batching.direct"),
    *("sequence_batching.oldest", "sequence_batching.control_input", "sequence_batching.state"),
    *("sequence_batching.iterative_sequence", "ensemble_scheduling.step", "instance_group.name"),
    *("instance_group.kind", "instance_group.gpus", "instance_group.rate_limiter"),
    *("instance_group.secondary_devices", "instance_group.profile", "instance_group.passive"),
    "instance_group.host_policy",
}
"""Decided: these choose the code that runs, its files and its place, or what clients see of the
model. All fields below them are closed, except those in OPEN."""


def pair(path: Path) -> tuple[ModelConfig, ModelConfig]:
    """Two configs that differ in this field only."""
    own, asked = ModelConfig(name="m"), ModelConfig(name="m")
    decide(own, path, changed=False)
    decide(asked, path, changed=True)
    if path == ("name",):
        asked.name = "other"
    return asked, own


def is_refused(asked: ModelConfig, own: ModelConfig) -> bool:
    try:
        require_open(asked, own)
    except OverrideRefusedError:
        return True
    return False


def test_every_field_is_decided() -> None:
    names = {".".join(path) for path in PATHS}
    assert names >= OPEN
    assert names >= CLOSED
    closed_parents = [f"{name}." for name in CLOSED]
    undecided = [
        name for name in sorted(names - OPEN - CLOSED) if not name.startswith(tuple(closed_parents))
    ]
    assert undecided == []
    assert not OPEN & CLOSED


def test_what_is_open_is_a_short_list() -> None:
    """Opening a field is a decision: it changes this test, too."""
    roots = {name.partition(".")[0] for name in OPEN}
    assert len(OPEN) == 28
    assert roots == {
        "max_batch_size",
        "dynamic_batching",
        "sequence_batching",
        "ensemble_scheduling",
        "instance_group",
        "response_cache",
    }


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_field_that_is_not_listed_is_refused(path: Path) -> None:
    asked, own = pair(path)
    assert asked != own
    expected = ".".join(path) not in OPEN
    assert is_refused(asked, own) is expected
    assert is_refused(own, asked) is expected
    assert not is_refused(asked, asked)


SETTINGS = [field.name for field in msgspec.structs.fields(EngineSettings)]


@pytest.mark.parametrize(
    "name",
    [*SETTINGS, *sorted(OWN_NAMES), "EXECUTION_ENV_PATH", "PYTHON_VENV", "PYTHON_VERSION", "ENV:A"],
)
@pytest.mark.parametrize("backend", ["llm", "python"])
def test_every_setting_is_refused(name: str, backend: str) -> None:
    own, asked = ModelConfig(name="m", backend=backend), ModelConfig(name="m", backend=backend)
    asked.parameters[name].string_value = ""
    drop_facts(asked)
    assert is_refused(asked, own)
    assert is_refused(own, asked)
    own.parameters[name].string_value = "1"
    assert is_refused(asked, own)


def test_a_fact_is_no_setting() -> None:
    assert not {*SETTINGS, *OWN_NAMES} & set(FACTS)


def test_what_the_server_shows_may_be_sent_back() -> None:
    own = ModelConfig(name="m", backend="llm")
    own.instance_group.add(name="m", count=1)
    shown = ModelConfig()
    shown.CopyFrom(own)
    for name in FACTS:
        shown.parameters[name].string_value = "native"
    asked = parse_override(config_to_json(shown))
    asked.instance_group[0].count = 3
    drop_facts(asked)
    require_open(asked, own)


def test_the_name_of_a_group_is_compared_only_where_somebody_wrote_it() -> None:
    own, asked = ModelConfig(name="m"), ModelConfig(name="m")
    own.instance_group.add(name="m", count=1)
    asked.instance_group.add(name="m_0", count=2)
    require_open(asked, own)
    asked.instance_group[0].name = "other"
    assert is_refused(asked, own)
    asked.instance_group[0].name = "m_0"
    asked.instance_group.add(name="m_1", count=2)
    assert is_refused(asked, own)


def test_lists_are_compared_element_by_element() -> None:
    own, asked = ModelConfig(name="m"), ModelConfig(name="m")
    for config in (own, asked):
        config.input.add(name="a", dims=[1])
        config.input.add(name="b", dims=[1])
    require_open(asked, own)
    asked.input[1].dims[0] = 2
    with pytest.raises(OverrideRefusedError, match=r"may not change input\[1\].dims of model 'm'"):
        require_open(asked, own)
    assert require_open(asked, own, completes=True)
    asked.backend = "python"
    with pytest.raises(OverrideRefusedError, match=r"may not change backend of model 'm'"):
        require_open(asked, own, completes=True)


def test_many_differences_make_a_short_text() -> None:
    own, asked = ModelConfig(name="m"), ModelConfig(name="m")
    for number in range(10_000):
        asked.parameters[f"p{number}"].string_value = "x"
    with pytest.raises(OverrideRefusedError) as caught:
        require_open(asked, own)
    assert caught.value.code is Code.UNSUPPORTED
    assert len(caught.value.message) < 500


def test_a_choice_counts_even_if_its_value_is_the_default() -> None:
    own, asked = ModelConfig(name="m"), ModelConfig(name="m")
    own.model_warmup.add().inputs["x"].zero_data = False
    asked.model_warmup.add().inputs["x"].SetInParent()
    assert is_refused(asked, own)


# References.


def graph(*names: str, key: str = "") -> ModelConfig:
    config = ModelConfig(name="e")
    for name in names:
        config.ensemble_scheduling.step.add(model_name=name)
    if key:
        config.parameters["tensorrt_llm_model_name"].string_value = key
    return config


def own_is(config: ModelConfig) -> Any:
    return lambda: config


@pytest.mark.parametrize("may_change_all", [True, False])
def test_a_reference_needs_the_right_to_its_target(may_change_all: bool) -> None:
    rights = OverrideRights(may_change_all, lambda name: name.startswith("bl"))
    own = graph("secret", "bl1")
    require_references(graph("bl1", "bl2", key="bl3"), own_is(own), rights)
    require_references(own, own_is(own), rights)  # the operator wrote it
    for asked in (graph("secret"), graph("bl1", "secret"), graph(key="secret")):
        with pytest.raises(OverrideRefusedError) as caught:
            require_references(asked, own_is(own), rights)
        assert caught.value.code is Code.NOT_FOUND
        assert caught.value.message == "Request for unknown model: 'secret' is not found"


def test_who_has_no_patterns_may_name_every_model() -> None:
    require_references(graph("secret"), own_is(graph()), OverrideRights(False))
