"""/v1/embeddings with the stock `openai` client, against models in Python: batched and not, and one
that only its config declares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import Server, naiad
from tests.server.trace_reading import ORDER, read_traces

openai = pytest.importorskip(
    "openai", reason="the stock client is not installed (pip install openai)"
)

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.embed(request) for request in requests]

    def embed(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        if b"bad" in texts:
            error = pb_utils.TritonError("cannot embed that", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        rows = np.array([[len(text), text[0], 0.5] for text in texts.ravel()], np.float32)
        counts = [len(text.split()) for text in texts.ravel()]
        counts = np.array(counts, np.int32).reshape(texts.shape)
        tensors = [pb_utils.Tensor("%(output)s", rows), pb_utils.Tensor("num_input_tokens", counts)]
        return pb_utils.InferenceResponse(tensors)
"""
CONFIG = """
backend: "python"
max_batch_size: %(batch)d
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ %(dims)s ] } ]
output [
  { name: "%(output)s" data_type: TYPE_FP32 dims: [ %(shape)s ] },
  { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ %(dims)s ] }
]
%(more)s
"""
DECLARED = 'parameters { key: "task" value: { string_value: "embedding" } }'
MODELS = {
    "batched": {
        "batch": 4,
        "dims": "1",
        "shape": "3",
        "output": "EMBEDDING",
        "more": "dynamic_batching { }",
    },
    "flat": {
        "batch": 0,
        "dims": "-1",
        "shape": "-1, 3",
        "output": "sentence_embedding",
        "more": "",
    },
    "declared": {"batch": 8, "dims": "1", "shape": "3", "output": "OUT", "more": DECLARED},
    "scores": {"batch": 8, "dims": "1", "shape": "3", "output": "OUT", "more": ""},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository: Path = tmp_path_factory.mktemp("embeddings")
    for name, values in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG % values)
        (repository / name / "1" / "model.py").write_text(MODEL % values)
    with naiad([str(repository)]) as running:
        yield running


def test_an_embedding_is_traced(tmp_path: Path) -> None:
    (tmp_path / "repository" / "flat" / "1").mkdir(parents=True)
    (tmp_path / "repository" / "flat" / "config.pbtxt").write_text(CONFIG % MODELS["flat"])
    (tmp_path / "repository" / "flat" / "1" / "model.py").write_text(MODEL % MODELS["flat"])
    flags = [f"triton,file={tmp_path / 'trace.json'}", "rate=1", "level=TIMESTAMPS"]
    with naiad(
        [str(tmp_path / "repository")], [f"--trace-config={flag}" for flag in flags]
    ) as running:
        status, body = running.post("/v1/embeddings", {"model": "flat", "input": ["one", "two"]})
        assert status == 200, body
    (trace,) = read_traces(tmp_path / "trace.json")
    assert trace.model == "flat"
    assert trace.activities == [name for name in ORDER if not name.startswith("GRPC")]


@pytest.fixture(name="client", scope="module")
def _client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"http://{server.http}/v1", api_key="none", max_retries=0, timeout=20
    ) as client:
        yield client


def test_only_embedding_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["batched", "declared", "flat"]


@pytest.mark.parametrize("model", ["batched", "flat", "declared"])
@pytest.mark.parametrize("form", ["base64", "float"])
def test_vectors_come_back_in_order(client: Any, model: str, form: str) -> None:
    texts = [f"{'abcdefghij'[at]} text" + "!" * at for at in range(10)]
    answer = client.embeddings.create(model=model, input=texts, encoding_format=form)
    vectors = [entry.embedding for entry in answer.data]
    if form == "float":
        assert vectors == [[len(text), ord(text[0]), 0.5] for text in texts]
    else:
        assert len(vectors) == 10
    assert [entry.index for entry in answer.data] == list(range(10))
    assert answer.usage.prompt_tokens == 20


def test_what_the_client_asks_for_by_default_is_decoded(client: Any) -> None:
    assert client.embeddings.create(model="batched", input="ab").data[0].embedding == [
        2.0,
        97.0,
        0.5,
    ]


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot embed that"):
        client.embeddings.create(model="batched", input=["good", "bad"])
    with pytest.raises(openai.BadRequestError, match="not an embedding model"):
        client.embeddings.create(model="scores", input="x")
    with pytest.raises(openai.NotFoundError, match="'nope' does not exist"):
        client.embeddings.create(model="nope", input="x")
    with pytest.raises(openai.BadRequestError, match="not a language model"):
        client.chat.completions.create(model="batched", messages=[{"role": "user", "content": "x"}])
