"""OpenAI's endpoints with the stock `openai` client, against a server with a tiny random
checkpoint."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.server.harness import Server
from tests.server.llm_checkpoint import write_checkpoint

USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
WAIT_S = 30.0


@pytest.fixture(name="client", scope="module")
def _client(llm_server: Server) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"http://{llm_server.http}/v1", api_key="none", max_retries=0, timeout=WAIT_S
    ) as client:
        yield client


def chat(client: Any, **fields: Any) -> Any:
    fields = {
        "model": "tiny",
        "messages": USER,
        "max_tokens": 8,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    } | fields
    return client.chat.completions.create(**fields)


def test_models_are_listed(client: Any) -> None:
    names = [model.id for model in client.models.list()]
    assert {"tiny", "narrow", "tiny_vllm"} <= set(names)
    assert client.models.retrieve("tiny").id == "tiny"
    assert client.models.retrieve("tiny").model_extra == {"max_model_len": 4096}
    with pytest.raises(openai.NotFoundError, match="'nope' does not exist"):
        client.models.retrieve("nope")


@pytest.mark.parametrize("model", ["tiny", "tiny_vllm"])
def test_a_chat_is_the_same_streamed(client: Any, model: str) -> None:
    whole = chat(client, model=model)
    message = whole.choices[0].message
    assert (message.role, whole.choices[0].finish_reason, whole.object) == (
        "assistant",
        "length",
        "chat.completion",
    )
    assert whole.usage.completion_tokens == 8
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 8
    chunks = list(chat(client, model=model, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        == message.content
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 8)
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_asynchronous_client_streams(llm_server: Server) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"http://{llm_server.http}/v1", api_key="none", timeout=WAIT_S
    ) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=5, stream=True
        )
        roles = [chunk.choices[0].delta.role async for chunk in stream]
        assert roles[0] == "assistant"


def test_n_choices_with_a_seed_and_logprobs(client: Any) -> None:
    answers = [
        chat(client, n=3, seed=5, temperature=1, logprobs=True, top_logprobs=2, max_tokens=4)
        for _ in range(2)
    ]
    assert [choice.index for choice in answers[0].choices] == [0, 1, 2]
    assert [c.message.content for c in answers[0].choices] == [
        c.message.content for c in answers[1].choices
    ]
    entries = answers[0].choices[1].logprobs.content
    assert len(entries) == 4
    assert entries[0].logprob <= 0
    assert len(entries[0].top_logprobs) == 2


def test_completions_of_several_prompts(client: Any) -> None:
    fields = {
        "model": "tiny",
        "prompt": ["One", "Two"],
        "max_tokens": 4,
        "temperature": 0,
        "n": 2,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.completions.create(**fields)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.choices[0].text == whole.choices[1].text
    texts = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(**fields, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [choice.text for choice in whole.choices]
    assert whole.usage.completion_tokens == 16


def test_echo_stop_and_logprobs_of_completions(client: Any) -> None:
    fields = {
        "model": "tiny",
        "prompt": "Abc",
        "max_tokens": 30,
        "temperature": 0,
        "extra_body": {"ignore_eos": True},
    }
    plain = client.completions.create(**fields).choices[0].text
    assert client.completions.create(**fields, echo=True).choices[0].text == "Abc" + plain
    stop = plain[9:11]
    cut = client.completions.create(**fields, stop=[stop])
    assert (cut.choices[0].text, cut.choices[0].finish_reason) == (
        plain[: plain.index(stop)],
        "stop",
    )
    logprobs = (
        client.completions.create(model="tiny", prompt="Abc", max_tokens=3, logprobs=2)
        .choices[0]
        .logprobs
    )
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
    assert len(logprobs.top_logprobs[0]) >= 2


@pytest.fixture(name="reference", scope="module")
def _reference(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The served model once more: the same seed makes the same weights."""
    transformers = pytest.importorskip("transformers")
    folder = write_checkpoint(tmp_path_factory.mktemp("reference"), max_positions=4096)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def expected_logprobs(model: Any, tokens: list[int]) -> tuple[list[float], list[float]]:
    """Every token but the first has one, and so have the most probable tokens."""
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        rows = model(torch.tensor([tokens])).logits[0, :-1].log_softmax(dim=-1)
    chosen = rows.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return chosen.tolist(), rows.max(dim=-1).values.tolist()


@pytest.mark.parametrize("model", ["tiny", "tiny_vllm"])
def test_log_likelihoods_are_those_of_transformers(client: Any, reference: Any, model: str) -> None:
    """As lm-evaluation-harness asks: a context and a continuation as tokens, one more token."""
    source = random.Random(8)
    questions = [
        [source.randrange(3, 250) for _ in range(source.randint(2, 60))] for _ in range(200)
    ]
    for at in range(0, len(questions), 50):
        found = client.completions.create(
            model=model, prompt=questions[at : at + 50], echo=True, logprobs=1, max_tokens=1,
            temperature=0, seed=1234,
        )  # fmt: skip
        for choice, tokens in zip(found.choices, questions[at : at + 50], strict=True):
            chosen, best = expected_logprobs(reference, tokens)
            logprobs = choice.logprobs
            assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
            assert logprobs.token_logprobs[1 : len(tokens)] == pytest.approx(chosen, abs=1e-3)
            tops = [max(top.values()) for top in logprobs.top_logprobs[1 : len(tokens)]]
            assert tops == pytest.approx(best, abs=1e-3)
            assert len(logprobs.tokens) == len(logprobs.text_offset) == len(tokens) + 1


def test_the_prompt_alone_is_scored(client: Any, reference: Any) -> None:
    fields = {"model": "tiny", "prompt": "Abc déf", "echo": True, "max_tokens": 0, "logprobs": 0}
    whole = client.completions.create(**fields)
    (choice,) = whole.choices
    assert (choice.text, choice.finish_reason) == ("Abc déf", "length")
    assert len(choice.logprobs.tokens) == whole.usage.prompt_tokens == 8
    assert whole.usage.completion_tokens == 0
    assert choice.logprobs.tokens[5:7] == ["bytes:\\xc3", "bytes:\\xa9"]
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Abc déf"
    assert chunks[0].choices[0].logprobs == choice.logprobs
    tokens = client.completions.create(**fields | {"prompt": [68, 69, 70], "logprobs": None})
    again = client.completions.create(**fields | {"prompt": [[68, 69, 70]], "max_tokens": 2})
    assert again.choices[0].text.startswith(tokens.choices[0].text)
    assert len(again.choices[0].logprobs.tokens) == 5


def test_prompt_logprobs_are_those_of_vllm(client: Any, reference: Any) -> None:
    tokens = [60, 61, 62, 63]
    extra = {"prompt_logprobs": 2}
    found = client.completions.create(
        model="tiny", prompt=tokens, max_tokens=2, n=2, extra_body=extra
    )
    for choice in found.choices:
        entries = choice.prompt_logprobs
        assert entries[0] is None
        chosen, best = expected_logprobs(reference, tokens)
        for entry, token, own, top in zip(entries[1:], tokens[1:], chosen, best, strict=True):
            assert entry[str(token)]["logprob"] == pytest.approx(own, abs=1e-3)
            ranked = [one["logprob"] for one in entry.values() if one["rank"] == 1]
            assert ranked == pytest.approx([top], abs=1e-3)
    whole = chat(client, extra_body=extra)
    assert len(whole.prompt_logprobs) == whole.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="'prompt_logprobs' cannot be streamed"):
        chat(client, extra_body=extra, stream=True)


@pytest.mark.parametrize(
    ("fields", "kind", "param", "words"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model", "does not exist"),
        ({"temperature": -1}, openai.BadRequestError, "temperature", "Expected a value >= 0"),
        (
            {"max_tokens": "many"},
            openai.BadRequestError,
            "max_tokens",
            "Invalid type for 'max_tokens'",
        ),
        (
            {"top_logprobs": 3},
            openai.BadRequestError,
            "top_logprobs",
            "only allowed when 'logprobs'",
        ),
        (
            {"messages": [{"role": "villain", "content": "x"}]},
            openai.BadRequestError,
            None,
            "no villains",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            openai.BadRequestError,
            "messages",
            "This model's maximum context length is 4096 tokens. However, the prompt has 5",
        ),
        (
            {"tool_choice": "required"},
            openai.BadRequestError,
            "tool_choice",
            "only allowed when 'tools'",
        ),
        (
            {"response_format": {"type": "xml"}},
            openai.BadRequestError,
            "response_format",
            "Supported values are",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_an_error_in_openais_shape(
    client: Any,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str | None,
    words: str,
    stream: bool,
) -> None:
    with pytest.raises(kind) as caught:
        chat(client, stream=stream, **fields)
    error = caught.value
    assert isinstance(error.body, dict)
    assert words in error.body["message"]
    assert (error.param, error.type) == (param, "invalid_request_error")


def test_overload_is_429_with_retry_after_and_accepted_requests_end(client: Any) -> None:
    def ask(index: int) -> tuple[int, str | None]:
        try:
            chat(client, model="narrow", max_tokens=300, seed=index)
        except openai.RateLimitError as error:
            return error.status_code, error.response.headers["Retry-After"]
        return 200, None

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    assert {status for status, _ in answers} == {200, 429}
    assert {retry for status, retry in answers if status == 429} == {"1"}


PERSON = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "tell", "description": "Tells", "parameters": PERSON},
}


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_holds(client: Any, seed: int) -> None:
    pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    form = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PERSON, "strict": True}}
    answer = chat(
        client, response_format=form, max_tokens=200, temperature=1, seed=seed, extra_body={}
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content)
    assert found["kind"] in ("cat", "dog")
    assert isinstance(found["old"], bool)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "tell"}}])
def test_a_tool_that_must_be_called_is(client: Any, choice: Any, stream: bool) -> None:
    pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    fields = {
        "tools": [TOOL],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 300,
        "temperature": 1,
        "extra_body": {},
    }
    reason = "tool_calls" if choice == "required" else "stop"
    if stream:
        with client.chat.completions.stream(
            model="tiny", messages=USER, seed=1, **fields
        ) as events:
            answer = events.get_final_completion()
    else:
        answer = chat(client, **fields, seed=1)
    call = answer.choices[0].message.tool_calls[0]
    assert (call.function.name, call.type, answer.choices[0].finish_reason) == (
        "tell",
        "function",
        reason,
    )
    assert json.loads(call.function.arguments)["kind"] in ("cat", "dog")


def test_a_stream_that_is_closed_early_leaves_the_server_free(client: Any) -> None:
    with chat(client, model="narrow", max_tokens=4000, stream=True) as stream:
        next(iter(stream))
    assert chat(client, model="narrow", max_tokens=2).usage.completion_tokens == 2


def test_a_response_is_the_same_streamed(client: Any) -> None:
    fields = {
        "model": "tiny",
        "input": "Hello",
        "instructions": "Be brief",
        "max_output_tokens": 12,
        "temperature": 0,
    }
    whole = client.responses.create(**fields)
    assert (whole.object, whole.output[0].type) == ("response", "message")
    events = list(client.responses.create(**fields, stream=True))
    kinds, final = [event.type for event in events], events[-1].response
    assert (
        "".join(event.delta for event in events if event.type == "response.output_text.delta")
        == whole.output_text
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == f"response.{whole.status}"
    asked = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
    same = client.chat.completions.create(
        model="tiny", messages=asked, max_tokens=12, temperature=0
    )
    assert same.choices[0].message.content == whole.output_text


def test_a_response_calls_a_tool_and_takes_its_output(client: Any) -> None:
    pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    tool = {"type": "function", "name": "tell", "parameters": PERSON, "strict": True}
    question: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]
    with client.responses.stream(
        model="tiny",
        input=question,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        extra_body={"seed": 3},
    ) as stream:
        response = stream.get_final_response()
    call = response.output[0]
    assert (call.type, call.name, response.status) == ("function_call", "tell", "completed")
    assert json.loads(call.arguments)["kind"] in ("cat", "dog")
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    again = client.responses.create(
        model="tiny", input=[*question, call, told], tools=[tool], max_output_tokens=5
    )
    assert again.usage.output_tokens <= 5
    with pytest.raises(openai.BadRequestError, match="responses are not stored"):
        client.responses.create(model="tiny", input="x", previous_response_id=response.id)


def test_the_client_parses_an_answer_into_a_class(client: Any) -> None:
    pytest.importorskip("xgrammar", reason="structured output needs xgrammar")
    pydantic = pytest.importorskip("pydantic")
    pet = pydantic.create_model("Pet", kind=(Literal["cat", "dog"], ...), old=(bool, ...))
    answer = client.chat.completions.parse(
        model="tiny", messages=USER, response_format=pet, max_tokens=200, seed=2
    )
    assert answer.choices[0].message.parsed.kind in ("cat", "dog")
    response = client.responses.parse(
        model="tiny", input="Hi", text_format=pet, max_output_tokens=200, extra_body={"seed": 2}
    )
    assert isinstance(response.output_parsed.old, bool)
