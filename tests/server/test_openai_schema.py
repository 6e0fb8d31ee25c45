"""Answers that a schema constrains, over schemas that hypothesis draws, on both engines: what its
length did not cut fits its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.harness import Server, naiad
from tests.server.llm_checkpoint import parameter, write_model

NUM_AT_ONCE = 20
NUM_ROUNDS = 10
NAMES = st.text("abcxyz_", min_size=1, max_size=4)


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": sorted(fields),
        "additionalProperties": False,
    }


LEAVES = st.one_of(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 99}]
    ),
    st.lists(st.one_of(NAMES, st.integers(-9, 9)), min_size=1, max_size=4, unique=True).map(
        lambda values: {"enum": values}
    ),
    st.integers(0, 5).map(lambda size: {"type": "string", "pattern": f"^[a-z ]{{0,{size}}}$"}),
    st.tuples(st.integers(0, 4), st.integers(0, 8)).map(
        lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(_object),
        st.tuples(inner, st.integers(1, 3)).map(
            lambda pair: {"type": "array", "items": pair[0], "minItems": 1, "maxItems": pair[1]}
        ),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=6,
)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """For the part of JSON schema that is drawn here."""
    if "anyOf" in schema:
        return any(fits(value, part) for part in schema["anyOf"])
    if "enum" in schema:
        return any(value == each and type(value) is type(each) for each in schema["enum"])
    match schema["type"]:
        case "object":
            fields = schema["properties"]
            return (
                isinstance(value, dict)
                and value.keys() == fields.keys()
                and all(fits(value[name], fields[name]) for name in fields)
            )
        case "array":
            items, at_most = schema["items"], schema["maxItems"]
            return (
                isinstance(value, list)
                and 1 <= len(value) <= at_most
                and all(fits(item, items) for item in value)
            )
        case "string":
            if "pattern" in schema:
                return isinstance(value, str) and re.fullmatch(schema["pattern"], value) is not None
            return (
                isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
            )
        case "integer":
            return type(value) is int and 0 <= value <= 99
        case "boolean":
            return isinstance(value, bool)
    return value is None


@pytest.fixture(scope="module")
def openvino_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
    from tests.unit.llm import openvino_gguf

    folder = tmp_path_factory.mktemp("openvino")
    path = openvino_gguf.write(folder / "tiny.gguf", max_position_embeddings=2048)
    settings = {
        "checkpoint": path,
        "engine": "openvino",
        "num_threads": 1,
        "kv_cache_bytes": 1 << 24,
        "max_num_seqs": 8,
    }
    write_model(
        folder / "repository",
        "tiny",
        'backend: "llm"\n' + "".join(parameter(name, value) for name, value in settings.items()),
    )
    cache = {"NAIAD_CACHE": str(folder / "cache")}
    with naiad([str(folder / "repository")], environment=cache) as server:
        yield server


@pytest.fixture(params=["native", "openvino"])
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "native":
        pytest.importorskip(
            "xgrammar", reason="structured output needs xgrammar on the native engine"
        )
    found: Server = request.getfixturevalue(
        "llm_server" if request.param == "native" else "openvino_server"
    )
    return found


def ask(server: Server, schema: dict[str, Any], seed: int) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "drawn", "schema": schema}}
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": form,
        "seed": seed,
        "max_tokens": 300,
    }
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 200, (schema, answer)
    choice: dict[str, Any] = json.loads(answer)["choices"][0]
    return choice


def test_answers_fit_their_schemas(server: Server) -> None:
    num_whole = 0

    @settings(
        max_examples=NUM_ROUNDS, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(SCHEMAS, min_size=NUM_AT_ONCE, max_size=NUM_AT_ONCE))
    def run(schemas: list[dict[str, Any]]) -> None:
        nonlocal num_whole
        with ThreadPoolExecutor(8) as pool:
            choices = list(pool.map(lambda pair: ask(server, pair[1], pair[0]), enumerate(schemas)))
        for schema, choice in zip(schemas, choices, strict=True):
            if choice["finish_reason"] == "stop":
                num_whole += 1
                assert fits(json.loads(choice["message"]["content"]), schema), (
                    schema,
                    choice["message"]["content"],
                )

    run()
    print(f"{num_whole} of {NUM_ROUNDS * NUM_AT_ONCE} answers were whole")
    assert num_whole > NUM_ROUNDS * NUM_AT_ONCE // 2


def test_a_keyword_that_cannot_be_enforced_is_a_400_with_its_name(server: Server) -> None:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "drawn", "schema": {"type": "array", "uniqueItems": True}},
    }
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "response_format": form,
    }
    status, answer = server.post("/v1/chat/completions", body)
    assert status == 400
    assert (
        "keyword 'uniqueItems' at '#' of the schema cannot be enforced here"
        in json.loads(answer)["error"]["message"]
    )
