"""Attacks on a language model: requests whose values cost more than they should.

In:  the addresses of a running server with a model of the llm backend called `tiny` (and one called
     `trusting`, with trust_request_chat_template, for TRUSTING). Out: nothing; an attack fails with
     an AssertionError if a request is not refused. Whoever runs an attack checks that streams of
     other clients go on meanwhile and that memory stays flat.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.server.harness import Endpoints

MODEL = "tiny"
_USER = [{"role": "user", "content": "Hi"}]
_TEMPLATES = (
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 10**10 }}",
    "{{ 'x' | center(10**10) }}",
    "{% set n = namespace(x='x') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
)


def refused(server: Endpoints, path: str, body: dict[str, Any]) -> None:
    status, data = server.post(path, body)
    assert status == 400, (path, status, data[:300])


def _generate(server: Endpoints, **fields: Any) -> None:
    body = {"text_input": "a", "sampling_parameters": json.dumps(fields)}
    refused(server, f"/v2/models/{MODEL}/generate", body)
    refused(server, "/v1/completions", {"model": MODEL, "prompt": "a", **fields})


def warm_up(server: Endpoints) -> None:
    """Starts the processes that read templates and grammars: they start when they are needed."""
    for model in (MODEL, "trusting"):
        body = {"model": model, "messages": _USER, "max_tokens": 1, "guided_regex": "a"}
        status, data = server.post("/v1/chat/completions", body)
        assert status == 200, data[:300]


def request_templates(server: Endpoints) -> None:
    """The model does not trust requests, so none of them is even read."""
    for template in _TEMPLATES:
        body = {"model": MODEL, "messages": _USER, "chat_template": template}
        refused(server, "/v1/chat/completions", body)


def trusted_templates(server: Endpoints) -> None:
    """The model trusts requests, but templates have limits."""
    for template in _TEMPLATES:
        body = {"model": "trusting", "messages": _USER, "chat_template": template}
        refused(server, "/v1/chat/completions", body)


def many_completions(server: Endpoints) -> None:
    _generate(server, n=10**9)
    body = {"model": MODEL, "prompt": ["a"] * 256, "n": 128, "max_tokens": 4000}
    refused(server, "/v1/completions", body)


def long_prompts(server: Endpoints, num_bytes: int = 50_000_000) -> None:
    text = "word " * (num_bytes // 5)
    refused(server, f"/v2/models/{MODEL}/generate", {"text_input": text})
    for _ in range(20):  # just within the bytes, but beyond the context
        refused(server, f"/v2/models/{MODEL}/generate", {"text_input": text[:65_000]})


def long_lists(server: Endpoints) -> None:
    _generate(server, bad_words=[f"word {index}" for index in range(30_000)])
    _generate(server, stop=[f"word {index}" for index in range(200_000)])
    _generate(server, stop_token_ids=[1] * 100_000)
    _generate(server, logit_bias={str(index): 1 for index in range(100_000)})


def huge_integers(server: Endpoints) -> None:
    for value in ((1 << 64) + 5, -(1 << 70), 10**400):
        for name in ("seed", "max_tokens", "min_tokens", "top_k", "n", "temperature"):
            _generate(server, **{name: value})


def grammars(server: Endpoints) -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    wide = {f"p{index}": {"type": "string", "maxLength": 4000 - index} for index in range(40)}
    for fields in (
        {"guided_regex": "(" * 5000 + ")" * 5000},
        {"guided_regex": "((((a{1,4000}){1,4000}){1,4000}){1,4000})"},
        {"guided_regex": "|".join("." * 40 for _ in range(3000))},
        {"guided_regex": "x" * 1_000_000},
        {"guided_json": deep},
        {"guided_json": {"type": "object", "properties": wide, "required": list(wide)}},
        {"guided_grammar": "root ::= " + " | ".join(f'"{index}" root' for index in range(20_000))},
        {"guided_grammar": "root ::= root"},
    ):
        refused(server, "/v1/completions", {"model": MODEL, "prompt": "a", **fields})


ATTACKS: tuple[Callable[[Endpoints], None], ...] = (
    request_templates,
    many_completions,
    long_prompts,
    long_lists,
    huge_integers,
    grammars,
)
TRUSTING = (trusted_templates,)
