"""Does an engine compute what float32 does? Distributions of the next token at every place of a
text, and greedy tokens.

The reference is transformers in float32 on the file's own, dequantized weights. Used by
test_agreement.py on made checkpoints and on SmolLM2, and by bench/llm_agreement.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from naiad.llm.checkpoint.gguf import GgufCheckpoint
from naiad.llm.engine import Engine
from naiad.llm.generation import GenerationRequest, TokenOutput
from naiad.llm.models.decoder import Decoder
from naiad.llm.parameters import SamplingParameters
from naiad.llm.text.chat_template import ChatTemplate

Floats = NDArray[np.float32]
Logits = Callable[[list[int]], Floats]
"""Tokens -> [tokens, vocabulary]."""
NUM_GREEDY = 8

QUESTIONS = """\
Hello
Who wrote Hamlet?
What is the capital of France?
Name three rivers of Europe.
What is 2 + 2?
Write a haiku about the sea.
Explain what a computer does, in one sentence.
How do I boil an egg?
Tell me a joke.
What is the largest planet in the solar system?
Translate "good morning" into French.
Why is the sky blue?
Who was Albert Einstein?
Give me a recipe for pancakes.
What does DNA stand for?
List the primary colors.
How many days are in a week?
What is the boiling point of water?
Write a short story about a cat.
What is the difference between a lake and a sea?
Who painted the Mona Lisa?
Summarize the story of Cinderella.
What is photosynthesis?
How can I sleep better?
What is the speed of light?
Name a famous scientist.
What year did the Second World War end?
Describe a sunset.
What is a prime number?
Write a sentence with the word "river".
How do airplanes fly?
What are the benefits of exercise?
What is the capital of Japan?
Give me three tips for learning a language.
What is gravity?
Who discovered penicillin?
What is machine learning?
How do I make tea?
Tell me about the moon.
What is the opposite of hot?
Can you help me write an email to my boss?
What is an atom?
Why do leaves change color in autumn?
What is the tallest mountain in the world?
Write a poem about friendship.
What does a doctor do?
How far is the sun from the earth?
What is the currency of Japan?
What is your name?
Thank you for your help!
""".splitlines()


class Agreement(msgspec.Struct):
    mean_kl: float
    same_best: float
    """At which part of the places both have the same best token."""
    num_tokens: int


def compare(reference: Logits, found: Logits, chunks: list[list[int]]) -> Agreement:
    divergences, same = [], []
    for chunk in chunks:
        ours, theirs = _log_softmax(found(chunk)), _log_softmax(reference(chunk))
        divergences.append((np.exp(theirs) * (theirs - ours)).sum(axis=-1))
        same.append(ours.argmax(axis=-1) == theirs.argmax(axis=-1))
    kl, equal = np.concatenate(divergences), np.concatenate(same)
    return Agreement(float(kl.mean()), float(equal.mean()), len(kl))


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normed: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normed


def as_chat(checkpoint: GgufCheckpoint, question: str) -> str:
    assert checkpoint.chat_template is not None
    return ChatTemplate(checkpoint.chat_template, checkpoint.special_tokens).render(
        [{"role": "user", "content": question}]
    )


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], count: int = NUM_GREEDY) -> list[int]:
    tokens = torch.tensor([prompt])
    for _ in range(count):
        best = model(tokens).logits[0, -1].argmax()
        tokens = torch.cat((tokens, best.view(1, 1)), dim=1)
    found: list[int] = tokens[0, len(prompt) :].tolist()
    return found


def reference_logits(model: Any) -> Logits:
    @torch.inference_mode()
    def logits(tokens: list[int]) -> Floats:
        found: Floats = model(torch.tensor([tokens])).logits[0].float().numpy()
        return found

    return logits


def kept(logits: Logits) -> Logits:
    """Asks once for each text: the reference is the slowest of all."""
    found: dict[tuple[int, ...], Floats] = {}

    def answer(tokens: list[int]) -> Floats:
        key = tuple(tokens)
        if key not in found:
            found[key] = logits(tokens)
        return found[key]

    return answer


def engine_greedy(engine: Any, prompt: list[int], count: int = NUM_GREEDY) -> list[int]:
    """Returns the greedy tokens of any engine, through `submit` and `step`."""
    parameters = SamplingParameters(temperature=0.0, max_tokens=count, ignore_eos=True)
    engine.submit(
        GenerationRequest(
            id="greedy", prompt=prompt, parameters=parameters, should_detokenize=False
        )
    )
    outputs: list[TokenOutput] = []
    while engine.has_work:
        outputs += engine.step()
    return [token for output in outputs for token in output.token_ids]


class _Recorder:
    """The native engine's model, which keeps the logits of all rows of a step."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.rows: list[torch.Tensor] = []

    def forward(self, step: Any, cache: Any) -> torch.Tensor:
        decoder = self._decoder
        stream = decoder.run_layers(step, cache)
        whole = dataclasses.replace(step, sample_rows=None)
        config, weights = decoder.config, decoder.weights
        self.rows.append(
            decoder.operations.logits(
                stream, weights.final_norm, weights.head, whole, config.logits_softcap
            )
        )
        return decoder.logits(stream, step)


def native_logits(engine: Engine) -> Logits:
    decoder = engine.runner.model
    assert isinstance(decoder, Decoder)

    def logits(tokens: list[int]) -> Floats:
        recorder = _Recorder(decoder)
        engine.runner.model = recorder
        try:
            engine_greedy(engine, tokens, 1)
        finally:
            engine.runner.model = decoder
        found: Floats = torch.cat(recorder.rows).float().numpy()
        assert len(found) == len(tokens), "a prefix came from the cache"
        return found

    return logits


def openvino_logits(
    folder: Path, num_threads: int = 0, properties: dict[str, str] | None = None
) -> Logits:
    """Returns the logits of the model in `folder`, rewritten for paged attention and compiled as
    ContinuousBatchingPipeline does it."""
    import openvino
    from openvino._offline_transformations import paged_attention_transformation

    from naiad.llm.openvino.engine import BLOCK_SIZE, EXACT

    core = openvino.Core()
    model = core.read_model(folder / "openvino_model.xml")
    paged_attention_transformation(model)
    compiled = core.compile_model(
        model,
        "CPU",
        {
            **(EXACT if properties is None else properties),
            **({"INFERENCE_NUM_THREADS": num_threads} if num_threads else {}),
        },
    )
    caches = [port for port in compiled.inputs if "_cache." in port.any_name]

    def logits(tokens: list[int]) -> Floats:
        count = len(tokens)
        num_blocks = -(-count // BLOCK_SIZE)
        request = compiled.create_infer_request()
        for port in caches:
            shape = [
                num_blocks,
                *(dimension.get_length() for dimension in list(port.partial_shape)[1:]),
            ]
            request.set_tensor(
                port.any_name, openvino.Tensor(port.element_type, openvino.Shape(shape))
            )
        values = {
            "input_ids": np.array(tokens, np.int64),
            "position_ids": np.arange(count, dtype=np.int64),
            "past_lens": np.zeros(1, np.int32),
            "subsequence_begins": np.array([0, count], np.int32),
            "block_indices": np.arange(num_blocks, dtype=np.int32),
            "block_indices_begins": np.array([0, num_blocks], np.int32),
            "max_context_len": np.array(count, np.int32),
        }
        if any("sampled_tokens_indices" in port.names for port in compiled.inputs):
            values["sampled_tokens_indices"] = np.arange(count, dtype=np.int64)
        for name, value in values.items():
            request.set_tensor(name, openvino.Tensor(value))
        request.infer()
        found: Floats = request.get_tensor("logits").data.reshape(count, -1).copy()
        return found

    return logits
