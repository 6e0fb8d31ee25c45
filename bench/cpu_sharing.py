"""Compares how an earlier checkout and this one share the CPU, alone and next to a busy process.

    git worktree add /tmp/before COMMIT; naiad pull smollm2
    python -m bench.cpu_sharing --before /tmp/before [--parts eight torchscript native pipeline]
    python -m bench.cpu_sharing --before /tmp/before --also GOMP_SPINCOUNT=1000

The parts are a Python model with eight CPU instances and a small network in PyTorch, a TorchScript
CNN, a language model on the native engine, and a Hugging Face pipeline in a model.py. The servers
of a part start one after the other, which shows the time and the memory of a start. Then they take
turns under load. `--also` adds a server of this checkout with further environment variables. torch
and transformers are needed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.before_after import HERE, launch_checkout
from bench.process_tree import MIB, cpu_seconds, memory_bytes
from naiad.backends.llm.checkpoint import PULLED, cache_dir
from tests.server.harness import Server
from tests.server.llm_checkpoint import parameter, write_model

NUM_TOKENS = 16
START_LIMIT_S = 600.0
BUSY = "while True: pass"
IMAGE = (3, 64, 64)
TENSORS = (
    "input [ { name: 'x' data_type: TYPE_FP32 dims: [ 3, 64, 64 ] } ]\n"
    "output [ { name: 'y' data_type: TYPE_FP32 dims: [ 10 ] } ]\n"
)
PYTHON_MODEL = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2),
            torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 30 * 30, 10),
        ).eval()

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            with torch.inference_mode():
                y = self.network(torch.from_numpy(x)[None])[0].numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", y)]))
        return responses
"""
PIPELINE = """
import json
from pathlib import Path

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        path = Path(parameters["huggingface_model"]["string_value"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        )
        self.pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)

    def execute(self, requests):
        responses = []
        for request in requests:
            prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            result = self.pipeline(
                prompt, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False
            )
            output = np.array([result[0]["generated_text"].encode()], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)]))
        return responses
""".replace("NUM_TOKENS", str(NUM_TOKENS))
TEXT_TENSORS = (
    "input [ { name: 'text_input' data_type: TYPE_STRING dims: [ 1 ] } ]\n"
    "output [ { name: 'text_output' data_type: TYPE_STRING dims: [ 1 ] } ]\n"
)


@dataclass(frozen=True)
class Call:
    """One request, as it is sent again and again."""

    path: str
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True)
class Part:
    what: str
    concurrency: int
    write: Callable[[Path], Call]
    """Writes the model into a repository and returns a request for it."""


def image_call(model: str) -> Call:
    image = np.random.default_rng(1).standard_normal(IMAGE, np.float32).tobytes()
    head = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": list(IMAGE),
                "parameters": {"binary_data_size": len(image)},
            }
        ]
    }
    text = json.dumps(head).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    return Call(f"/v2/models/{model}/infer", text + image, headers)


def text_call(model: str, **more: object) -> Call:
    body = {"text_input": "Gravity is", **more}
    return Call(f"/v2/models/{model}/generate", json.dumps(body).encode(), {})


def write_eight(repository: Path) -> Call:
    groups = "instance_group [ { kind: KIND_CPU count: 8 } ]\n"
    config = f'backend: "python"\n{TENSORS}{groups}'
    write_model(repository, "eight", config, {"1/model.py": PYTHON_MODEL})
    return image_call("eight")


def write_torchscript(repository: Path) -> Call:
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.Flatten(0),
        torch.nn.Linear(64 * 30 * 30, 10),
    ).eval()
    config = f'backend: "pytorch"\n{TENSORS}instance_group [ {{ kind: KIND_CPU count: 1 }} ]\n'
    write_model(repository, "torchscript", config, {})
    version = repository / "torchscript" / "1"
    version.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(network, torch.zeros(IMAGE)).save(str(version / "model.pt"))
    return image_call("torchscript")


def write_native(repository: Path) -> Call:
    config = (
        'backend: "llm"\n'
        + parameter("checkpoint", cache_dir() / PULLED["smollm2"])
        + parameter("engine", "native")
        + parameter("device", "cpu")
    )
    write_model(repository, "native", config, {})
    return text_call("native", max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0)


def write_pipeline(repository: Path) -> Call:
    groups = "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
    path = parameter("huggingface_model", cache_dir() / PULLED["smollm2"])
    config = f'backend: "python"\n{TEXT_TENSORS}{groups}{path}'
    write_model(repository, "pipeline", config, {"1/model.py": PIPELINE})
    return text_call("pipeline")


PARTS = {
    "eight": Part("Python model, 8 CPU instances, c=8", 8, write_eight),
    "torchscript": Part("TorchScript CNN, c=4", 4, write_torchscript),
    "native": Part(f"native engine, {NUM_TOKENS} tokens, c=4", 4, write_native),
    "pipeline": Part(f"Hugging Face pipeline, {NUM_TOKENS} tokens, c=2", 2, write_pipeline),
}


@dataclass(frozen=True)
class Figures:
    infer_per_s: float
    p50_ms: float
    cpu_ms: float
    """CPU milliseconds of the server's process tree per inference."""


@dataclass(frozen=True)
class Start:
    took_s: float
    pss_mib: float
    rss_mib: float


def load(server: Server, call: Call, concurrency: int, seconds: float) -> Figures:
    """Each client sends its next request when it has its response, until the time is up."""
    took_s: list[float] = []
    errors: list[str] = []
    end_s = time.monotonic() + seconds

    def client() -> None:
        connection = http.client.HTTPConnection(server.http, timeout=600)
        while time.monotonic() < end_s and not errors:
            start_s = time.monotonic()
            connection.request("POST", call.path, call.body, call.headers)
            response = connection.getresponse()
            body = response.read()
            took_s.append(time.monotonic() - start_s)
            if response.status != 200:
                errors.append(body.decode())
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(concurrency)]
    cpu_s, begin_s = cpu_seconds(server.pid), time.monotonic()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    passed_s = time.monotonic() - begin_s
    if errors:
        raise RuntimeError(errors[0])
    cpu_s = cpu_seconds(server.pid) - cpu_s
    return Figures(
        len(took_s) / passed_s, statistics.median(took_s) * 1e3, cpu_s / len(took_s) * 1e3
    )


@contextlib.contextmanager
def busy_neighbour(is_wanted: bool) -> Iterator[None]:
    if not is_wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        try:
            yield
        finally:
            process.kill()


def start(folder: Path, repository: str, variables: dict[str, str]) -> tuple[Server, Start]:
    begin_s = time.monotonic()
    server = launch_checkout(folder, repository, variables)
    try:
        server.wait_started(START_LIMIT_S)
        took_s = time.monotonic() - begin_s
        memory = memory_bytes(server.pid)
    except BaseException:
        server.stop()
        raise
    return server, Start(took_s, memory["Pss"] / MIB, memory["Rss"] / MIB)


Checkouts = dict[str, tuple[Path, dict[str, str]]]


def run_part(part: Part, checkouts: Checkouts, rounds: int, seconds: float) -> None:
    starts: dict[str, Start] = {}
    figures: dict[tuple[bool, str], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        call = part.write(Path(folder))
        servers: dict[str, Server] = {}
        for name, (checkout, variables) in checkouts.items():
            servers[name], starts[name] = start(checkout, folder, variables)
            stack.callback(servers[name].stop)
        for server in servers.values():
            load(server, call, part.concurrency, 1.0)
        for has_neighbour in (False, True):
            for _ in range(rounds):
                for name, server in servers.items():
                    with busy_neighbour(has_neighbour):
                        result = load(server, call, part.concurrency, seconds)
                    figures.setdefault((has_neighbour, name), []).append(result)
    first = next(iter(checkouts))
    for name in checkouts:
        one = starts[name]
        print(
            f"| {part.what} | start | {name} | {one.took_s:.1f} s "
            f"| {starts[first].took_s / one.took_s:.2f}x "
            f"| {one.pss_mib:.0f} MiB PSS | {one.rss_mib:.0f} MiB RSS |",
            flush=True,
        )
    for (has_neighbour, name), measured in figures.items():
        rate = statistics.median(one.infer_per_s for one in measured)
        base = statistics.median(one.infer_per_s for one in figures[has_neighbour, first])
        p50 = statistics.median(one.p50_ms for one in measured)
        cpu = statistics.median(one.cpu_ms for one in measured)
        neighbour = "next to a busy process" if has_neighbour else "alone"
        print(
            f"| {part.what} | {neighbour} | {name} | {rate:.1f} /s | {rate / base:.2f}x "
            f"| p50 {p50:.1f} ms | {cpu:.1f} ms CPU |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the earlier checkout")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a turn")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=VALUE,...")
    chosen = parser.parse_args()
    checkouts: Checkouts = {"before": (chosen.before.resolve(), {}), "after": (HERE, {})}
    for text in chosen.also:
        variables = dict(pair.split("=", 1) for pair in text.split(","))
        checkouts[f"after, {text}"] = (HERE, variables)
    print(f"{os.cpu_count()} cores, median of {chosen.rounds} turns of {chosen.seconds:g} s\n")
    print("| what | | server | figure | relative to before | | |")
    print("|---|---|---|---:|---:|---:|---:|")
    for name in chosen.parts:
        run_part(PARTS[name], checkouts, chosen.rounds, chosen.seconds)


if __name__ == "__main__":
    main()
