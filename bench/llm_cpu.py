"""SmolLM2-135M on this machine's CPU, 1 and 8 requests at once, every way to serve it in one run and one table.

    naiad pull smollm2; python -m bench.llm_cpu                 all of it
    python -m bench.llm_cpu --only openvino,direct-openvino --rounds 3

Ours: `backend: "llm"` on each engine, whole and streamed, over HTTP. Against: a Hugging Face pipeline in model.py (dynamic batching) in our
own server, OpenVINO GenAI's ContinuousBatchingPipeline and llama.cpp (xllamacpp) called directly, without a server.
All get the same prompts and write exactly NUM_TOKENS tokens, greedily; prompts differ between rounds, so no cache helps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from naiad.backends.llm_checkpoint import PULLED, cache_dir
from tests.server.harness import Endpoints, naiad
from tests.server.llm_checkpoint import parameter, write_model

NUM_TOKENS = 64
NUM_THREADS = 2
CONCURRENCIES = (1, 8)
TOPICS = ("a lighthouse", "the tides", "a clockmaker", "old maps", "a comet", "beekeeping", "a night train", "the first snow")

PIPELINE = '''
import json
from pathlib import Path

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils

torch.set_num_threads(%(threads)d)


class TritonPythonModel:
    def initialize(self, args):
        path = Path(json.loads(args["model_config"])["parameters"]["huggingface_model"]["string_value"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        self.pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy() for request in requests]
        prompts = [tensor.ravel()[0].decode() for tensor in tensors]
        found = self.pipeline(
            prompts, max_new_tokens=%(tokens)d, min_new_tokens=%(tokens)d, do_sample=False, batch_size=len(prompts), return_full_text=False
        )
        texts = [np.array([[one[0]["generated_text"].encode()]], dtype=np.object_) for one in found]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]) for text in texts]
'''  # fmt: skip


@dataclass
class Result:
    way: str
    concurrency: int
    tokens_per_s: float
    first_token_ms: float | None
    """Median over the requests; only where tokens come one by one."""


def prompts(count: int, round_number: int) -> list[str]:
    return [
        f"<|im_start|>user\nStory {round_number}.{index}: tell me about {TOPICS[index % len(TOPICS)]}.<|im_end|>\n<|im_start|>assistant\n"
        for index in range(count)
    ]


# Over HTTP.


def ask(server: Endpoints, model: str, prompt: str, is_streamed: bool) -> float | None:
    """Seconds to the first event, for a stream."""
    fields: dict[str, object] = {"text_input": prompt}
    if model != "pipeline":
        fields |= {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": is_streamed}
    route = "generate_stream" if is_streamed else "generate"
    request = urllib.request.Request(f"http://{server.http}/v2/models/{model}/{route}", json.dumps(fields).encode())
    start_s = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as response:
        first = response.readline() if is_streamed else b""
        first_s = time.perf_counter() - start_s
        rest = first + response.read()
    if model != "pipeline":
        assert b'"finish_reason":"length"' in rest, "it stopped before its last token"
    return first_s if first else None


def generated_tokens(server: Endpoints) -> float:
    """What the engine itself has counted; shown a moment later."""
    for line in server.get("/metrics", "metrics")[1].decode().splitlines():
        if line.startswith("vllm:generation_tokens_total{"):
            return float(line.rpartition(" ")[2])
    return 0.0


def settled_tokens(server: Endpoints) -> float:
    """A whole number of answers: what was asked for before has been counted by then."""
    end_s = time.monotonic() + 10
    while (count := generated_tokens(server)) == 0 or count % NUM_TOKENS:
        assert time.monotonic() < end_s, f"{count:.0f} tokens were counted, expected a multiple of {NUM_TOKENS}"
    return count


def require_tokens(server: Endpoints, before: float, expected: int) -> None:
    """Every request wrote all of its tokens: otherwise the rate is no rate."""
    end_s = time.monotonic() + 10
    while generated_tokens(server) - before != expected:
        assert time.monotonic() < end_s, f"{generated_tokens(server) - before:.0f} tokens were written, expected {expected}"


def measure(server: Endpoints, way: str, model: str, concurrency: int, rounds: int, is_streamed: bool) -> Result:
    first_s: list[float] = []
    took_s = 0.0
    before = settled_tokens(server) if model != "pipeline" else 0.0
    for round_number in range(rounds):
        start_s = time.perf_counter()

        def one(prompt: str) -> None:
            first = ask(server, model, prompt, is_streamed)
            if first is not None:
                first_s.append(first)

        threads = [threading.Thread(target=one, args=(prompt,)) for prompt in prompts(concurrency, round_number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s += time.perf_counter() - start_s
    if model != "pipeline":
        require_tokens(server, before, concurrency * rounds * NUM_TOKENS)
    first_ms = statistics.median(first_s) * 1000 if first_s else None
    return Result(way, concurrency, concurrency * rounds * NUM_TOKENS / took_s, first_ms)


def serve(checkpoint: Path, model: str, config: str, files: dict[str, str], ways: list[tuple[str, bool]], rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model, config, files)
        with naiad([folder]) as server:
            ask(server, model, prompts(1, 99)[0], False)
            return [
                measure(server, way, model, concurrency, rounds, is_streamed) for way, is_streamed in ways for concurrency in CONCURRENCIES
            ]


def ours(engine: str) -> Callable[[Path, int], list[Result]]:
    def run(checkpoint: Path, rounds: int) -> list[Result]:
        config = 'backend: "llm"\n' + parameter("checkpoint", checkpoint) + parameter("engine", engine) + parameter("device", "cpu")
        ways = [(f"naiad, {engine} engine", False), (f"naiad, {engine} engine, streamed", True)]
        return serve(checkpoint, "llm", config + parameter("num_threads", NUM_THREADS), {}, ways, rounds)

    return run


def pipeline(checkpoint: Path, rounds: int) -> list[Result]:
    config = (
        'backend: "python"\nmax_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 20000 }\n'
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]\n' + parameter("huggingface_model", checkpoint)
    )
    source = PIPELINE % {"threads": NUM_THREADS, "tokens": NUM_TOKENS}
    return serve(checkpoint, "pipeline", config, {"1/model.py": source}, [("Hugging Face pipeline in model.py", False)], rounds)


# Called directly, each in a process of its own.


def direct(name: str) -> Callable[[Path, int], list[Result]]:
    def run(checkpoint: Path, rounds: int) -> list[Result]:
        command = [sys.executable, "-m", "bench.llm_cpu", "--direct", name, "--checkpoint", str(checkpoint), "--rounds", str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(f"{name} was not measured: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return []
        return [Result(**fields) for fields in json.loads(done.stdout.strip().splitlines()[-1])]

    return run


def direct_openvino(checkpoint: Path, rounds: int) -> list[Result]:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = 2048
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = 256
    scheduler.enable_prefix_caching = True  # these three as our engine sets them: the same pipeline on both sides
    scheduler.dynamic_split_fuse = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(checkpoint), scheduler, "CPU", {"INFERENCE_NUM_THREADS": NUM_THREADS})
    tokenizer = pipeline.get_tokenizer()
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = NUM_TOKENS
    config.ignore_eos = True
    config.apply_chat_template = False
    numbers = iter(range(1 << 30))

    def round_s(texts: list[str]) -> float:
        start_s = time.perf_counter()
        # A request whose handle is gone is dropped.
        handles = [
            pipeline.add_request(next(numbers), tokenizer.encode(text, add_special_tokens=False).input_ids, config) for text in texts
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        took_s = time.perf_counter() - start_s
        for handle in handles:
            assert sum(len(one.generated_ids) for one in handle.read_all()) == NUM_TOKENS
        return took_s

    return _rounds("OpenVINO GenAI, called directly", round_s, rounds)


def direct_llamacpp(checkpoint: Path, rounds: int) -> list[Result]:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(checkpoint)
    parameters.n_parallel = max(CONCURRENCIES)
    parameters.n_ctx = 512 * max(CONCURRENCIES)
    parameters.cpuparams.n_threads = NUM_THREADS
    parameters.warmup = True
    server = xllamacpp.Server(parameters)

    def round_s(texts: list[str]) -> float:
        def one(text: str) -> None:
            body = {"prompt": text, "n_predict": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
            server.handle_completions(body, lambda answer: None)

        start_s = time.perf_counter()
        threads = [threading.Thread(target=one, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start_s

    return _rounds("llama.cpp, called directly", round_s, rounds)


def _rounds(way: str, round_s: Callable[[list[str]], float], rounds: int) -> list[Result]:
    round_s(prompts(1, 99))
    results = []
    for concurrency in CONCURRENCIES:
        took_s = sum(round_s(prompts(concurrency, number)) for number in range(rounds))
        results.append(Result(way, concurrency, concurrency * rounds * NUM_TOKENS / took_s, None))
    return results


WAYS: dict[str, Callable[[Path, int], list[Result]]] = {
    "openvino": ours("openvino"),
    "native": ours("native"),
    "pipeline": pipeline,
    "direct-openvino": direct("openvino"),
    "direct-llamacpp": direct("llamacpp"),
}
DIRECT = {"openvino": direct_openvino, "llamacpp": direct_llamacpp}


def table(results: list[Result]) -> str:
    lines = ["| way | requests at once | tokens/s | first token, median ms |", "|---|---:|---:|---:|"]
    for one in results:
        first = "" if one.first_token_ms is None else f"{one.first_token_ms:.0f}"
        lines.append(f"| {one.way} | {one.concurrency} | {one.tokens_per_s:.1f} | {first} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=cache_dir() / PULLED["smollm2"])
    parser.add_argument("--only", default=",".join(WAYS), help="of " + ", ".join(WAYS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--direct", choices=DIRECT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.direct:
        print(json.dumps([asdict(one) for one in DIRECT[arguments.direct](arguments.checkpoint, arguments.rounds)]))
        return
    if not arguments.checkpoint.exists():
        parser.error("no checkpoint: run `naiad pull smollm2`, or name a GGUF file with --checkpoint")
    results: list[Result] = []
    for name in arguments.only.split(","):
        results += WAYS[name](arguments.checkpoint, arguments.rounds)
        print(f"{name} is measured", file=sys.stderr)
    print(table(results))


if __name__ == "__main__":
    main()
