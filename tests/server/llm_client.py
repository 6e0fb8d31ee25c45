"""Requests to language models behind a server, and what tests compare the responses with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.server.harness import Server, process_name, process_tree

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
WAIT_S = 20.0


def generate(server: Server, model: str = "tiny", **fields: Any) -> dict[str, Any]:
    status, body = server.post(f"/v2/models/{model}/generate", fields)
    assert status == 200, body
    response: dict[str, Any] = json.loads(body)
    return response


def metric(server: Server, name: str, model: str, **labels: str) -> float:
    texts = [f'{key}="{value}"' for key, value in {"model": model, **labels}.items()]
    for line in server.get("/metrics", "metrics")[1].decode().splitlines():
        if line.startswith(name + "{") and all(text in line for text in texts):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no metric {name}")


def is_idle(server: Server, model: str) -> bool:
    """True if the model has no running and no waiting request, and all its KV blocks are free."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return all(metric(server, name, model) == 0 for name in gauges)


def worker_pid(server: Server, model: str) -> int:
    for pid in process_tree(server.pid):
        if process_name(pid) in (f"{model}_0"[-15:], f"{model}_0_0"[-15:]):
            return pid
    raise AssertionError(f"no worker of {model}")


def reference_tokens(server: Server, prompt: bytes, num_tokens: int) -> list[int]:
    """Returns the greedy tokens of transformers for the checkpoint of the model `tiny`."""
    import torch
    import transformers

    config = json.loads(server.get("/v2/models/tiny/config")[1])
    checkpoint = Path(config["parameters"]["checkpoint"]["string_value"])
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    ids = tokenizer(prompt.decode(), return_tensors="pt", add_special_tokens=False).input_ids
    for _ in range(num_tokens):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    return list(ids[0].tolist()[-num_tokens:])
