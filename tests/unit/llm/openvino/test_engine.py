"""The OpenVINO engine on a tiny GGUF file: the tokens of the native engine, the same ends, and
refusals by name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("openvino_genai", reason="needs openvino-genai (the openvino-llm extra)")
pytest.importorskip("gguf", reason="writes its own GGUF file")
pytest.importorskip("torch", reason="the weights are made by transformers")

from naiad.backends.llm.grammar_text import grammar_text
from naiad.errors import NaiadError
from naiad.ipc.generation_call import GrammarCall
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.generation import EbnfGrammar, FinishReason, GenerationRequest, Grammar, TokenOutput
from naiad.llm.openvino.engine import OpenvinoEngine, open_openvino
from naiad.llm.parameters import SamplingParameters
from tests.unit.llm import openvino_gguf, test_gguf
from tests.unit.llm.engines import Gatherer

PROMPT = "the tokens of a tiny model"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["kind", "size"],
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return openvino_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def shared(checkpoint: Path) -> OpenvinoEngine:
    return open_tiny(checkpoint, max_num_seqs=4, max_waiting_requests=4)


def open_tiny(checkpoint: Path, **values: Any) -> OpenvinoEngine:
    settings = EngineSettings(num_kv_blocks=32, **values)
    return open_openvino(checkpoint, settings, 1, checkpoint.parent / "cache", lambda text: None)


@pytest.fixture
def engine(shared: OpenvinoEngine) -> Iterator[OpenvinoEngine]:
    yield shared
    while shared.has_work:
        shared.step()


def request(id: str = "a", prompt: str | list[int] = PROMPT, **values: Any) -> GenerationRequest:
    return GenerationRequest(
        id=id,
        prompt=prompt,
        parameters=SamplingParameters(**{"temperature": 0.0, "ignore_eos": True, **values}),
    )


def run(engine: OpenvinoEngine, *requests: GenerationRequest) -> Gatherer:
    gatherer = Gatherer()
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        gatherer.take(engine.step())
    return gatherer


def test_several_at_once_give_what_each_gives_alone(engine: OpenvinoEngine) -> None:
    prompts = [PROMPT, "another", "a third one that is longer than the others"]
    alone = [
        run(engine, request(prompt=prompt, max_tokens=10)).completions["a", 0] for prompt in prompts
    ]
    together = run(
        engine,
        *(request(str(index), prompt, max_tokens=10) for index, prompt in enumerate(prompts)),
    )
    for index, one in enumerate(alone):
        found = together.completions[str(index), 0]
        assert (found.tokens, found.text, found.finish_reason) == (
            one.tokens,
            one.text,
            FinishReason.LENGTH,
        )
        assert engine.tokenizer.decode(found.tokens) == found.text


def test_seeds_fix_the_tokens_and_n_gives_several(engine: OpenvinoEngine) -> None:
    first, second = (
        run(engine, request(temperature=1.0, seed=5, n=2, max_tokens=8)).completions
        for _ in range(2)
    )
    assert {key: one.tokens for key, one in first.items()} == {
        key: one.tokens for key, one in second.items()
    }
    assert first["a", 0].tokens != first["a", 1].tokens


def test_one_request_gets_half_of_the_sequences(engine: OpenvinoEngine) -> None:
    engine.submit(request(n=7, max_tokens=4, temperature=1.0, seed=1))
    completions = engine._sequences["a"]
    ended: set[int] = set()
    while engine.has_work:
        started = [one for one in completions if one.handle is not None and not one.is_finished]
        assert len(started) <= 2
        outputs = engine.step()
        ended |= {output.index for output in outputs if output.finish_reason is not None}
    assert ended == set(range(7))
    engine.submit(request(n=7, max_tokens=100))
    engine.step()
    engine.cancel("a")
    reasons = [output.finish_reason for output in engine.step()]
    assert reasons == [FinishReason.CANCELLED] * 7
    assert run(engine, request(max_tokens=2)).completions["a", 0].tokens


def test_stop_strings_and_stop_tokens(engine: OpenvinoEngine) -> None:
    whole = run(engine, request(max_tokens=12)).completions["a", 0]
    stop = whole.text[4:6]
    cut = run(engine, request(max_tokens=12, stop=[stop])).completions["a", 0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (
        whole.text[: whole.text.index(stop)],
        FinishReason.STOP,
        stop,
    )
    token = whole.tokens[3]
    ended = run(engine, request(max_tokens=12, stop_token_ids=[token])).completions["a", 0]
    assert ended.tokens == whole.tokens[: whole.tokens.index(token) + 1]
    assert ended.stop_reason == token


def test_a_cancelled_request_ends_at_once(engine: OpenvinoEngine) -> None:
    engine.submit(request(max_tokens=100))
    engine.step()
    engine.cancel("a")
    outputs: list[TokenOutput] = []
    while engine.has_work:
        outputs += engine.step()
    assert [output.finish_reason for output in outputs] == [FinishReason.CANCELLED]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"logit_bias": {3: 1.0}}, "the openvino engine has no logit_bias"),
        ({"bad_words": ["x"]}, "the openvino engine has no bad_words"),
        ({"logprobs": 5}, "the openvino engine has no logprobs beyond 1"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_what_it_lacks_is_refused_by_name(
    engine: OpenvinoEngine, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(NaiadError) as refused:
        engine.submit(request(**values))
    assert words in refused.value.message
    assert refused.value.code.name == "INVALID_ARG"
    assert not engine.has_work


@pytest.mark.parametrize(("name", "value"), [("priority", 3), ("cache_salt", "mine")])
def test_what_it_lacks_beside_sampling_is_refused_too(
    engine: OpenvinoEngine, name: str, value: Any
) -> None:
    asked = request()
    setattr(asked, name, value)
    with pytest.raises(NaiadError, match=f"the openvino engine has no {name}"):
        engine.submit(asked)
    assert not engine.has_work


def test_more_completions_than_may_be_open_is_no_overload(engine: OpenvinoEngine) -> None:
    with pytest.raises(NaiadError, match="n is 9, expected at most 8") as refused:
        engine.submit(request(n=9))
    assert refused.value.code.name == "INVALID_ARG"


def test_requests_that_end_or_are_cancelled_give_their_blocks_back(engine: OpenvinoEngine) -> None:
    """Two hundred of them, and then one that needs nearly all blocks."""
    source = random.Random(1)
    gatherer = Gatherer()
    for number in range(200):
        if number % 4 == 0:
            while engine.has_work:
                gatherer.take(engine.step())
        engine.submit(
            request(
                str(number),
                [source.randrange(300) for _ in range(source.randint(1, 200))],
                max_tokens=source.randint(1, 20),
            )
        )
        if source.random() < 0.3:
            gatherer.take(engine.step())
            engine.cancel(str(number - source.randrange(3)))
    while engine.has_work:
        gatherer.take(engine.step())
    assert len(gatherer.completions) == 200
    assert {completion.finish_reason for completion in gatherer.completions.values()} == {
        FinishReason.LENGTH,
        FinishReason.CANCELLED,
    }
    assert engine.load().kv_cache_usage == 0.0
    large = [source.randrange(300) for _ in range(engine.max_model_len - 10)]
    assert (
        len(run(engine, request("large", large, max_tokens=9)).completions["large", 0].tokens) == 9
    )


def test_long_prompts_and_full_queues(engine: OpenvinoEngine) -> None:
    with pytest.raises(NaiadError, match="the model's context is"):
        engine.submit(request(prompt=[5] * 5000))
    for index in range(8):
        engine.submit(request(str(index), max_tokens=2))
    with pytest.raises(NaiadError, match="the limit is 8") as refused:
        engine.submit(request("late"))
    assert refused.value.retry_after_s == 1
    assert len(run(engine).completions) == 8


def test_logprobs_of_the_chosen_tokens(engine: OpenvinoEngine) -> None:
    found = run(engine, request(max_tokens=4, logprobs=1)).completions["a", 0]
    assert [entry.token for entry in found.logprobs] == found.tokens
    assert all(entry.logprob <= 0 for entry in found.logprobs)


# Grammars.


def constrained(id: str, grammar: str, **values: Any) -> GenerationRequest:
    asked = request(id, **{"temperature": 1.0, "ignore_eos": False, "max_tokens": 200, **values})
    asked.grammar = EbnfGrammar(grammar)
    return asked


def test_answers_fit_their_grammars_beside_free_ones(engine: OpenvinoEngine) -> None:
    text = grammar_text(GrammarCall("json_schema", json.dumps(SCHEMA)))
    alone = run(engine, request(max_tokens=20)).completions["a", 0]
    found = run(
        engine,
        request("free", max_tokens=20),
        constrained("schema", text, seed=1, n=2),
        constrained("choice", 'root ::= "yes" | "no"', ignore_eos=True),
    ).completions
    assert found["free", 0].tokens == alone.tokens
    assert found["choice", 0].text in ("yes", "no")
    assert found["choice", 0].finish_reason is FinishReason.STOP
    for index in range(2):
        assert found["schema", index].finish_reason is FinishReason.STOP
        value = json.loads(found["schema", index].text)
        assert value.keys() == {"kind", "size"}
        assert value["kind"] in ("cat", "dog")
        assert 0 <= value["size"] <= 99


def test_whatever_character_may_stand_somewhere_is_utf8(engine: OpenvinoEngine) -> None:
    grammar = grammar_text(GrammarCall("regex", "[^a-z]{8}"))
    for seed in range(0, 160, 8):
        found = run(
            engine, *(constrained(str(at), grammar, seed=seed + at) for at in range(8))
        ).completions
        for completion in found.values():
            assert completion.finish_reason is FinishReason.STOP
            assert len(completion.text) == 8
            assert "\ufffd" not in completion.text


def test_an_answer_that_is_cut_says_so(engine: OpenvinoEngine) -> None:
    found = run(engine, constrained("a", "root ::= [a-z]{50}", max_tokens=3)).completions["a", 0]
    assert found.finish_reason is FinishReason.LENGTH
    assert len(found.tokens) == 3


def test_what_a_grammar_cannot_go_with_is_refused(engine: OpenvinoEngine) -> None:
    with pytest.raises(NaiadError, match="min_tokens cannot be used with a grammar"):
        engine.submit(constrained("a", 'root ::= "a"', min_tokens=3))
    asked = request()
    asked.grammar = cast("Grammar", object())
    with pytest.raises(NaiadError, match="takes no compiled grammar"):
        engine.submit(asked)
    assert not engine.has_work


def test_a_grammar_that_breaks_a_step_fails_its_own_request_only(checkpoint: Path) -> None:
    """naiad.llm.grammar writes none that does; should a version of OpenVINO read one otherwise,
    this is what happens."""
    engine = open_tiny(checkpoint, max_num_seqs=8)
    expected = run(engine, request(max_tokens=20)).completions["a", 0]
    gatherer = Gatherer()
    engine.submit(request("running", max_tokens=20))
    engine.submit(constrained("half", "root ::= [a-z]{100}"))
    for _ in range(5):
        gatherer.take(engine.step())
    engine.submit(constrained("bad", 'root ::= oops "a'))
    engine.submit(request("new", max_tokens=20))
    while engine.has_work:
        gatherer.take(engine.step())
    found = gatherer.completions
    assert found["bad", 0].finish_reason is FinishReason.ERROR
    assert found["bad", 0].error is not None
    assert "OpenVINO could not use the grammar of the request" in found["bad", 0].error.message
    assert found["half", 0].error is not None
    assert found["half", 0].error.code.name == "UNAVAILABLE"
    for id in ("running", "new"):
        assert found[id, 0].tokens == expected.tokens
        assert found[id, 0].text == expected.text
        assert found[id, 0].finish_reason is FinishReason.LENGTH
    with pytest.raises(NaiadError, match="OpenVINO cannot use the grammar") as refused:
        engine.submit(constrained("again", 'root ::= oops "a'))
    assert refused.value.code.name == "INVALID_ARG"
    assert run(engine, request(max_tokens=20)).completions["a", 0].tokens == expected.tokens


def test_a_step_that_fails_for_another_reason_is_raised_and_the_engine_comes_back(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_tiny(checkpoint)
    engine.submit(request("a", max_tokens=20))

    class Broken:
        def has_non_finished_requests(self) -> bool:
            return True

        def step(self) -> None:
            raise RuntimeError("somewhere.cpp:3:\nthe device is gone")

    monkeypatch.setattr(engine, "_pipeline", Broken())
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    engine.cancel("a")
    assert [output.finish_reason for output in engine.step()] == [FinishReason.CANCELLED]
    assert len(run(engine, request("b", max_tokens=5)).completions["b", 0].tokens) == 5


def test_another_key_runs_next_and_paused_completions_lose_nothing(checkpoint: Path) -> None:
    engine = open_tiny(checkpoint, max_num_seqs=8, max_waiting_requests=8)
    prompts = {str(number): f"{PROMPT} {number}" for number in range(8)}
    alone = {}
    for id, prompt in prompts.items():
        gathered = run(engine, keyed(request(id, prompt, max_tokens=24), "flood"))
        alone[id] = gathered.completions[id, 0].tokens
    gatherer = Gatherer()
    for id, prompt in prompts.items():
        engine.submit(keyed(request(id, prompt, max_tokens=24), "flood"))
    for _ in range(5):
        gatherer.take(engine.step())
    assert engine.load().num_running == 8
    engine.submit(keyed(request("quiet", "another", max_tokens=2), "quiet"))
    gatherer.take(engine.step())
    assert len(gatherer.completions["quiet", 0].tokens) == 1
    assert engine.load().num_running == 3
    while engine.has_work:
        gatherer.take(engine.step())
    assert {id: gatherer.completions[id, 0].tokens for id in prompts} == alone


def keyed(request: GenerationRequest, key_id: str) -> GenerationRequest:
    request.key_id = key_id
    return request


def test_chunks_of_a_prompt_need_no_logits_of_a_split_head(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    made = test_gguf.tiny("Llama", hidden_size=128, tie_word_embeddings=True)
    openvino_gguf.write_model(path, made, "llama", ["Q8_0"])
    prompts = [[3 + index % 300 for index in range(length)] for length in (100, 32, 33, 5)]
    completions = []
    for use_split_head in (True, False):
        engine = open_tiny(path, max_num_batched_tokens=32, use_split_head=use_split_head)
        requests = [
            request(id=str(index), prompt=prompt, max_tokens=6)
            for index, prompt in enumerate(prompts)
        ]
        completions.append(run(engine, *requests).completions)
    assert completions[0] == completions[1]
