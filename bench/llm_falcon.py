"""Repeats the comparison of Triton's tutorial on Hugging Face models: Falcon-7B, 15 tokens per
response, requests per second.

One server serves two models: Naiad's engine (`backend: "llm"`), and a transformers pipeline in a
model.py with dynamic batching. Both have random weights of the same shape and write exactly NUM_OUT
tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.llm_checkpoints import write_checkpoint, write_model
from bench.llm_served import launch
from bench.llm_shapes import SHAPES
from bench.stream_load import Plan, measure, percentile

NUM_IN = 20
NUM_OUT = 15
CONCURRENCIES = (1, 4, 8, 16, 64)
WINDOW_S = 5.0
START_LIMIT_S = 200.0

PIPELINE_CONFIG = """
backend: "python"
max_batch_size: 64
dynamic_batching { }
input [ { name: "text_input" data_type: TYPE_STRING dims: [1] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [1] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
PIPELINE = """
from pathlib import Path

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils

CHECKPOINT = Path({checkpoint!r})


class TritonPythonModel:
    def initialize(self, args):
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(CHECKPOINT / "tokenizer.json"), pad_token="!", eos_token="!"
        )
        tokenizer.padding_side = "left"
        config = transformers.FalconConfig.from_pretrained(CHECKPOINT)
        config.pad_token_id = tokenizer.pad_token_id
        with torch.device({device!r}):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype={dtype}).eval()
        self.pipeline = transformers.pipeline(
            "text-generation", model=model, tokenizer=tokenizer, device={device!r}
        )

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "text_input") for request in requests]
        prompts = [text.decode() for tensor in tensors for text in tensor.as_numpy().ravel()]
        results = self.pipeline(
            prompts, max_new_tokens={num_out}, min_new_tokens={num_out}, do_sample=False,
            batch_size=len(prompts), return_full_text=False,
        )
        texts = [result[0]["generated_text"].encode() for result in results]
        outputs = [np.array([[text]], dtype=np.object_) for text in texts]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)])
            for output in outputs
        ]
"""

Step = Callable[[float, str, Callable[[], Any]], Any]


class FalconRow(msgspec.Struct):
    way: str
    """Either engine or pipeline."""
    concurrency: int
    requests_per_s: float
    p50_ms: float


def compare(shape: str, device: str, rows: list[FalconRow], step: Step) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = write_checkpoint(folder / "checkpoint", SHAPES[shape])
        write_model(
            folder / "repository",
            "engine",
            checkpoint,
            {"device": device, "max_model_len": 512, "max_num_seqs": 64},
        )
        write_pipeline(folder / "repository" / "pipeline", checkpoint, device)
        server = launch(folder / "repository")
        try:
            server.wait_started(START_LIMIT_S)
            for way in ("engine", "pipeline"):
                for size in CONCURRENCIES:
                    plan = Plan(
                        "whole",
                        server.http_port,
                        way,
                        clients=size,
                        num_in=NUM_IN,
                        num_out=NUM_OUT,
                        warm_s=1.0,
                        window_s=WINDOW_S,
                    )
                    plan.seed = len(rows) + 1
                    row = step(WINDOW_S + 3, f"{way} {size}", lambda plan=plan: measure_one(plan))  # type: ignore[misc]
                    if row is not None:
                        rows.append(row)
        finally:
            server.stop()


def measure_one(plan: Plan) -> FalconRow:
    readings = measure(plan)
    row = FalconRow(
        plan.model,
        plan.clients,
        readings.finished / plan.window_s,
        percentile(readings.request_s, 0.5) * 1e3,
    )
    print(
        f"  falcon {row.way:9} concurrency {row.concurrency:3}:"
        f" {row.requests_per_s:8.1f} requests/s, p50 {row.p50_ms:.1f} ms",
        flush=True,
    )
    return row


def write_pipeline(folder: Path, checkpoint: Path, device: str) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(PIPELINE_CONFIG)
    dtype = "torch.bfloat16" if device == "cuda" else "torch.float32"
    (folder / "1" / "model.py").write_text(
        PIPELINE.format(
            checkpoint=str(checkpoint.resolve()), device=device, dtype=dtype, num_out=NUM_OUT
        )
    )
