"""The sentence-embedding example, if examples/embeddings/build.py has built it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton

from tests.server.harness import Server, naiad

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install '.[onnx]')")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")

REPOSITORY = Path(__file__).parents[2] / "examples/embeddings/repository"
CAT, FELINE, REVENUE = (
    "The cat sits on the mat.",
    "A feline rests on a rug.",
    "Quarterly revenue grew by 12 percent.",
)
# The values of transformers and PyTorch for the same weights.
SIMILARITY = {(CAT, FELINE): 0.5584, (CAT, REVENUE): -0.0236, (FELINE, REVENUE): -0.0064}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not (REPOSITORY / "minilm/1/model.onnx").exists():
        pytest.skip("not built: python examples/embeddings/build.py")
    with naiad([str(REPOSITORY)]) as running:
        yield running


def embed(server: Server, *texts: str) -> np.ndarray[Any, Any]:
    tensor = triton.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text] for text in texts], object))
    with triton.InferenceServerClient(server.http) as client:
        embeddings: np.ndarray[Any, Any] = client.infer("sentence_embedding", [tensor]).as_numpy(
            "EMBEDDING"
        )
        return embeddings


def test_similarities_equal_those_of_the_original_model(server: Server) -> None:
    texts = [CAT, FELINE, REVENUE]
    vectors = dict(zip(texts, embed(server, *texts), strict=True))
    for (one, other), expected in SIMILARITY.items():
        assert float(vectors[one] @ vectors[other]) == pytest.approx(expected, abs=1e-3)


def test_a_sentence_has_the_same_embedding_alone_and_in_a_batch(server: Server) -> None:
    """Padding must not count."""
    np.testing.assert_allclose(
        embed(server, CAT)[0], embed(server, REVENUE + " " + FELINE, CAT)[1], atol=1e-5
    )
