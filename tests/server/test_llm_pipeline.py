"""Hugging Face pipelines in model.py, unmodified: alone, batched by config only, and a model with
eight workers and a helper module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.harness import Server, naiad, process_name, process_tree
from tests.server.llm_checkpoint import parameter, write_checkpoint, write_model

pytest.importorskip("torch", reason="the pipelines need torch")
pytest.importorskip("transformers", reason="the pipelines are transformers'")

PIPELINE = """
import json

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils

torch.set_num_threads(1)


class TritonPythonModel:
    def initialize(self, args):
        self.logger = pb_utils.Logger
        parameters = json.loads(args["model_config"])["parameters"]
        checkpoint = parameters["huggingface_model"]["string_value"]
        self.max_output_length = int(parameters["max_output_length"]["string_value"])
        self.logger.log_info(f"loading {checkpoint}")
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
        tokenizer.pad_token = tokenizer.eos_token
        self.pipeline = transformers.pipeline(
            "text-generation", model=transformers.AutoModelForCausalLM.from_pretrained(checkpoint),
            tokenizer=tokenizer
        )

    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            prompts = [element.decode("utf-8") for element in tensor.ravel()]
            found = self.pipeline(
                prompts,
                max_new_tokens=self.max_output_length,
                do_sample=False,
                return_full_text=False,
            )
            texts = np.array([one[0]["generated_text"].encode() for one in found], dtype=np.object_)
            output = pb_utils.Tensor("text_output", texts.reshape(tensor.shape))
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses

    def finalize(self):
        print("Cleaning up...")
"""
TENSORS = """
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
"""
HELPER = '''
def babble(prompt, length):
    """A generator of text that needs no library."""
    state = sum(prompt.encode())
    return "".join(chr(97 + (state * (index + 3)) % 26) for index in range(length))
'''
BABBLER = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils
from babble import babble


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.length = int(parameters["max_output_length"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input")
            prompt = prompt.as_numpy()[0].decode("utf-8")
            text = [babble(prompt, self.length).encode(), str(os.getpid()).encode()]
            text = np.array(text, dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
        return responses
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pipelines")
    checkpoint = write_checkpoint(folder / "checkpoint")
    repository = folder / "repository"
    config = (
        TENSORS
        + 'backend: "python"\n'
        + parameter("huggingface_model", checkpoint)
        + parameter("max_output_length", "6")
    )
    write_model(repository, "alone", config, {"1/model.py": PIPELINE})
    write_model(
        repository,
        "batched",
        config + "max_batch_size: 8\ndynamic_batching { }\n",
        {"1/model.py": PIPELINE},
    )
    eight = TENSORS + 'backend: "python"\n' + parameter("max_output_length", "12")
    workers = "instance_group [ { count: 8 kind: KIND_CPU } ]\n"
    write_model(
        repository, "eight", eight + workers, {"1/model.py": BABBLER, "1/babble.py": HELPER}
    )
    with naiad([str(repository)]) as running:
        yield running


def generate(server: Server, model: str, prompt: str) -> str | list[str]:
    status, body = server.post(f"/v2/models/{model}/generate", {"text_input": prompt})
    assert status == 200, body
    text: str | list[str] = json.loads(body)["text_output"]
    return text


def test_a_tutorials_model_py_runs_as_it_is(server: Server) -> None:
    text = generate(server, "alone", "Hello")
    assert isinstance(text, str)
    assert text


def test_two_lines_of_config_batch_it(server: Server) -> None:
    prompts = [f"prompt {index}" for index in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: generate(server, "batched", prompt), prompts))
    assert answers == [generate(server, "alone", prompt) for prompt in prompts]
    statistics = json.loads(server.get("/v2/models/batched/stats")[1])["model_stats"][0]
    assert statistics["inference_count"] == 8


def test_eight_workers_with_a_helper_module(server: Server) -> None:
    names = [process_name(pid) for pid in process_tree(server.pid)]
    assert sum(name.startswith("eight_0_") for name in names) == 8
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda index: generate(server, "eight", f"p{index}"), range(64)))
    assert all(len(answer[0]) == 12 for answer in answers)
