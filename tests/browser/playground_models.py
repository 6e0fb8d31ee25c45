"""Models for tests of the playground: two chat models, embeddings, an image, half precision."""

from __future__ import annotations

from pathlib import Path

from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model

EMBED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.embed(request) for request in requests]

    def embed(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
        rows = np.zeros((texts.size, 26), np.float32)
        for row, text in zip(rows, texts.ravel()):
            for letter in text.decode().lower():
                if "a" <= letter <= "z":
                    row[ord(letter) - 97] += 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", rows)])
"""
EMBED_CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "EMBEDDING" data_type: TYPE_FP32 dims: [ 26 ] } ]
"""
MEANS = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.mean(request) for request in requests]

    def mean(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        means = image.mean(axis=(2, 3), dtype="float64").astype(image.dtype)
        return pb_utils.InferenceResponse([pb_utils.Tensor("MEANS", means)])
"""
MEANS_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IMAGE" data_type: TYPE_%(type)s dims: [ 3, %(side)d, %(side)d ] } ]
output [ { name: "MEANS" data_type: TYPE_%(type)s dims: [ 3 ] } ]
"""


def write_models(repository: Path) -> None:
    """Models that need no framework."""
    write_model(repository, "letters", EMBED_CONFIG, {"1/model.py": EMBED})
    for name, type in (("means", "FP32"), ("half_means", "FP16")):
        config = MEANS_CONFIG % {"type": type, "side": 64}
        write_model(repository, name, config, {"1/model.py": MEANS})


def write_chat_models(repository: Path) -> None:
    """Two language models with random weights. Needs torch and transformers."""
    for name, layers in (("small", 2), ("large", 4)):
        folder = repository.parent / "checkpoints" / name
        checkpoint = write_checkpoint(folder, max_positions=4096, layers=layers)
        write_model(repository, name, 'backend: "llm"\n' + parameter("checkpoint", checkpoint))
