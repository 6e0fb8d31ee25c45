"""Targets in this process: configs as text and as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import DESCRIPTOR, ModelConfig
from naiad.repository.config.autocomplete import fill_backend, fill_defaults, fill_instance_groups
from naiad.repository.config.config_json import config_to_json
from naiad.repository.config.config_override import parse_override
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.config.validate import validate_config
from tests.fuzz.mutation import mutated_json
from tests.fuzz.target import target

REPOSITORIES = Path(__file__).parents[1] / "repositories"
FIELDS = sorted(
    {
        field.name.encode()
        for message in DESCRIPTOR.message_types_by_name.values()
        for field in message.fields
    }
)
SYNTAX = (b"{", b"}", b"[", b"]", b"<", b">", b":", b",", b";", b'"', b"'", b"#", b"\\x00", b"\\u")
VALUES = (b"TYPE_FP32", b"KIND_CPU", b"true", b"nan", b"-inf", b"0x7f", b"1e999", b"'\\777'")


def configs() -> Iterator[bytes]:
    for path in sorted(REPOSITORIES.glob("*/*/config.pbtxt")):
        yield path.read_bytes()


@target(tokens=(*FIELDS, *SYNTAX, *VALUES), more_seeds=configs)
def pbtxt(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    try:
        config = parse_text(text, ModelConfig, "model/config.pbtxt").message
    except InvalidConfigError as error:
        problems = error.problems
    else:
        use(config)
        return
    assert problems
    assert all(problem.sentence() for problem in problems)


def documents() -> Iterator[bytes]:
    for text in configs():
        with contextlib.suppress(NaiadError):
            parsed = parse_text(text.decode("utf-8", "surrogateescape"), ModelConfig, "m")
            yield config_to_json(parsed.message)


@target(tokens=(*FIELDS, *VALUES), mutate=mutated_json, more_seeds=documents)
def config_json(data: bytes) -> None:
    try:
        config = parse_override(data)
    except NaiadError:
        return
    use(config)


def use(config: ModelConfig) -> None:
    """What a load does with a config that could be read."""
    fill_backend(config, "model", ["model.py"])
    fill_defaults(config)
    fill_instance_groups(config, [])
    for problem in validate_config(config):
        assert problem.sentence()
    config_to_json(config)
