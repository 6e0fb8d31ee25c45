"""Targets in this process: configs as text and as JSON, forms and flat objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import DESCRIPTOR, ModelConfig
from naiad.protocol.v2 import form as form_codec
from naiad.protocol.v2.flat import FlatConversion, parse_large
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


_INPUTS = [
    TensorSpec("image", "BYTES", [1], [-1, 1]),
    TensorSpec("threshold", "FP32", [1], [-1, 1]),
    TensorSpec("pixels", "UINT8", [-1, 4], [-1, -1, 4]),
]
SPEC = ModelSpec("m", 1, [1], "", 8, {tensor.name: tensor for tensor in _INPUTS}, {})
FORM_TOKENS = (
    b"--b", b"--b--", b"\r\n", b"\r\n\r\n", b"Content-Disposition: form-data; ", b'name="image"',
    b'name="threshold"', b"0.5", b'filename="a"', b"Content-Transfer-Encoding: base64", b"%22",
)  # fmt: skip
FLAT_TOKENS = (b'{"pixels":', b"[[1,2,3,4]", b"],[", b"null", b'"image":', b'"', b"\\", b"1e99")


@target(tokens=FORM_TOKENS)
def form(data: bytes) -> None:
    with contextlib.suppress(NaiadError):
        request = form_codec.decode_request(
            data, b"multipart/form-data; boundary=b", SPEC, "", 1 << 20
        )
        assert all(tensor.name in SPEC.inputs for tensor in request.inputs)


@target(tokens=FLAT_TOKENS, mutate=mutated_json)
def flat(data: bytes) -> None:
    with contextlib.suppress(NaiadError):
        document, large = parse_large(data, SPEC, 1 << 20)
        if isinstance(document, dict):
            request = FlatConversion(SPEC, 1 << 20, large).request(document, "")
            for tensor in request.inputs:
                if tensor.datatype != "BYTES":
                    size = DATATYPES[tensor.datatype].byte_size
                    assert len(tensor.data) == tensor.element_count() * size
