"""Compares ways to serve SmolLM2-135M on the CPU, with 1 and 8 concurrent requests.

    naiad pull smollm2; python -m bench.llm_cpu
    python -m bench.llm_cpu --only openvino,direct-openvino --rounds 8
    python -m bench.llm_cpu --before DIR --only before,openvino --rounds 8

The ways are:
- `backend: "llm"` on each engine over HTTP, streamed and not. The native engine runs with its
  defaults (float32 with matrices in float16), in float32 and in bfloat16.
- A Hugging Face pipeline in a model.py with dynamic batching, served by Naiad, in float32 and in
  bfloat16.
- OpenVINO GenAI's ContinuousBatchingPipeline and llama.cpp (xllamacpp), called without a server.
  Both read the GGUF file themselves. Naiad's openvino engine gives the pipeline a model that Naiad
  has built from the file, whose zero points are exact, so the two do not compute the same.
- `before`: the openvino engine of the earlier checkout that `--before` names, over HTTP.

All run at the same time and take turns, round by round, so that changes of the machine's speed
affect them equally. Each writes exactly NUM_TOKENS tokens greedily. Prompts differ between rounds,
so that caches do not help.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.before_after import HERE, launch_checkout
from naiad.backends.llm.checkpoint import PULLED, cache_dir
from tests.server.harness import Endpoints, Server
from tests.server.llm_checkpoint import parameter, write_model

NUM_TOKENS = 64
NUM_THREADS = 2
CONCURRENCIES = (1, 8)
MARK = "seconds: "
"""Prefix of a child's result, because libraries also write to its standard output."""
TOPICS = (
    "a lighthouse",
    "the tides",
    "a clockmaker",
    "old maps",
    "a comet",
    "beekeeping",
    "a night train",
    "the first snow",
)

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
        parameters = json.loads(args["model_config"])["parameters"]
        path = Path(parameters["huggingface_model"]["string_value"])
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "left"
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.%(dtype)s
        )
        self.pipeline = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "text_input") for request in requests]
        prompts = [tensor.as_numpy().ravel()[0].decode() for tensor in tensors]
        results = self.pipeline(
            prompts, max_new_tokens=%(tokens)d, min_new_tokens=%(tokens)d, do_sample=False,
            batch_size=len(prompts), return_full_text=False,
        )
        texts = [result[0]["generated_text"].encode() for result in results]
        outputs = [np.array([[text]], dtype=np.object_) for text in texts]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("text_output", output)])
            for output in outputs
        ]
'''  # fmt: skip


@dataclass
class Round:
    took_s: float
    first_s: list[float]
    """Time to the first event of each streamed request."""


Runner = Callable[[list[str]], Round]
Opener = Callable[[Path], contextlib.AbstractContextManager[dict[str, Runner]]]


def prompts(count: int, round_number: int) -> list[str]:
    return [
        f"<|im_start|>user\nStory {round_number}.{index}: tell me about"
        f" {TOPICS[index % len(TOPICS)]}.<|im_end|>\n<|im_start|>assistant\n"
        for index in range(count)
    ]


# Over HTTP.


class Client:
    """A connection that is opened before the measurement starts."""

    def __init__(self, server: Endpoints, model: str, is_streamed: bool) -> None:
        self._model = model
        self._is_streamed = is_streamed
        self._connection = http.client.HTTPConnection(server.http, timeout=600)
        self._path = f"/v2/models/{model}/{'generate_stream' if is_streamed else 'generate'}"

    def connect(self) -> None:
        """Before each measurement, because the server closes connections that wait for long."""
        self._connection.close()
        self._connection.connect()

    def generate(self, prompt: str) -> float | None:
        """Sends a prompt. Returns the seconds to the first event of a stream, else None."""
        fields: dict[str, object] = {"text_input": prompt}
        if self._model != "pipeline":
            fields |= {
                "temperature": 0,
                "max_tokens": NUM_TOKENS,
                "ignore_eos": True,
                "stream": self._is_streamed,
            }
        start_s = time.perf_counter()
        self._connection.request("POST", self._path, json.dumps(fields))
        response = self._connection.getresponse()
        first = response.readline() if self._is_streamed else b""
        first_s = time.perf_counter() - start_s
        rest = first + response.read()
        if self._model != "pipeline":
            assert b'"finish_reason":"length"' in rest, "generation stopped before the last token"
        return first_s if first else None


def generated_tokens(server: Endpoints) -> float:
    """Returns the number of tokens in the metrics, which lag behind a little."""
    for line in server.get("/metrics", "metrics")[1].decode().splitlines():
        if line.startswith("vllm:generation_tokens_total{"):
            return float(line.rpartition(" ")[2])
    return 0.0


def settled_tokens(server: Endpoints) -> float:
    """Waits until the metrics count a whole number of responses, i.e. all earlier requests."""
    end_s = time.monotonic() + 10
    while (count := generated_tokens(server)) == 0 or count % NUM_TOKENS:
        assert time.monotonic() < end_s, (
            f"{count:.0f} tokens were counted, expected a multiple of {NUM_TOKENS}"
        )
    return count


def require_tokens(server: Endpoints, before: float, expected: int) -> None:
    """Asserts that every request wrote all of its tokens."""
    end_s = time.monotonic() + 10
    while generated_tokens(server) - before != expected:
        assert time.monotonic() < end_s, (
            f"{generated_tokens(server) - before:.0f} tokens were written, expected {expected}"
        )


def served(server: Endpoints, model: str, is_streamed: bool) -> Runner:
    pool = ThreadPoolExecutor(max(CONCURRENCIES))
    clients = [Client(server, model, is_streamed) for _ in range(max(CONCURRENCIES))]
    list(pool.map(lambda _: time.sleep(0.01), clients))  # starts the threads of the pool

    def run(texts: list[str]) -> Round:
        before = settled_tokens(server) if model != "pipeline" else 0.0
        for client, _ in zip(clients, texts, strict=False):
            client.connect()
        start_s = time.perf_counter()
        first_s = list(
            pool.map(lambda pair: pair[0].generate(pair[1]), zip(clients, texts, strict=False))
        )
        took_s = time.perf_counter() - start_s
        if model != "pipeline":
            require_tokens(server, before, len(texts) * NUM_TOKENS)
        return Round(took_s, [value for value in first_s if value is not None])

    return run


@contextlib.contextmanager
def serve_checkout(checkout: Path, repository: str) -> Iterator[Server]:
    server = launch_checkout(checkout, repository)
    try:
        yield server.wait_started()
    finally:
        server.stop()


@contextlib.contextmanager
def serve(
    model: str,
    config: str,
    files: dict[str, str],
    ways: dict[str, bool],
    checkout: Path,
) -> Iterator[dict[str, Runner]]:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), model, config, files)
        with serve_checkout(checkout, folder) as server:
            Client(server, model, False).generate(prompts(1, 99)[0])
            yield {way: served(server, model, is_streamed) for way, is_streamed in ways.items()}


def ours(engine: str, dtype: str = "", before: Path | None = None, activations: str = "") -> Opener:
    """`before` is an earlier checkout, which serves instead of this one."""

    def open_it(checkpoint: Path) -> contextlib.AbstractContextManager[dict[str, Runner]]:
        config = (
            'backend: "llm"\n'
            + parameter("checkpoint", checkpoint)
            + parameter("engine", engine)
            + parameter("device", "cpu")
        )
        chosen = {"num_threads": NUM_THREADS, "dtype": dtype, "activations": activations}
        config += "".join(parameter(name, value) for name, value in chosen.items() if value)
        way = f"naiad{'' if before is None else ' before'}, {engine} engine"
        way += f", activations {activations}" if activations else ""
        ways = {f"{way}, {dtype}": False} if dtype else {way: False, f"{way}, streamed": True}
        return serve("llm", config, {}, ways, before or HERE)

    return open_it


def pipeline(dtype: str) -> Opener:
    def open_it(checkpoint: Path) -> contextlib.AbstractContextManager[dict[str, Runner]]:
        config = (
            'backend: "python"\nmax_batch_size: 8\n'
            "dynamic_batching { max_queue_delay_microseconds: 20000 }\n"
            'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
            'output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
            + parameter("huggingface_model", checkpoint)
        )
        source = PIPELINE % {"threads": NUM_THREADS, "tokens": NUM_TOKENS, "dtype": dtype}
        way = f"Hugging Face pipeline in model.py, batched dynamically, {dtype}"
        return serve("pipeline", config, {"1/model.py": source}, {way: False}, HERE)

    return open_it


# Called directly, each in its own process.


def direct(name: str, way: str) -> Opener:
    """Starts a child that reads one JSON list of prompts per line and prints the seconds."""

    @contextlib.contextmanager
    def open_it(checkpoint: Path) -> Iterator[dict[str, Runner]]:
        command = [
            sys.executable,
            "-m",
            "bench.llm_cpu",
            "--direct",
            name,
            "--checkpoint",
            str(checkpoint),
        ]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            source, target = child.stdout, child.stdin

            def run(texts: list[str]) -> Round:
                target.write(json.dumps(texts) + "\n")
                target.flush()
                for line in source:
                    if line.startswith(MARK):
                        return Round(float(line.removeprefix(MARK)), [])
                raise RuntimeError(f"{way} ended")

            run(prompts(1, 99))
            yield {way: run}
            target.close()

    return open_it


def serve_rounds(round_s: Callable[[list[str]], float]) -> None:
    for line in sys.stdin:
        print(MARK + str(round_s(json.loads(line))), flush=True)


def direct_openvino(checkpoint: Path) -> None:
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = 2048
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = 256
    # These two, and the sizes, are those of Naiad's engine.
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(checkpoint), scheduler, "CPU", {"INFERENCE_NUM_THREADS": NUM_THREADS}
    )
    tokenizer = pipeline.get_tokenizer()
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = NUM_TOKENS
    config.ignore_eos = True
    config.apply_chat_template = False
    numbers = iter(range(1 << 30))

    def round_s(texts: list[str]) -> float:
        start_s = time.perf_counter()
        # The pipeline drops a request whose handle is garbage collected.
        handles = [
            pipeline.add_request(
                next(numbers), tokenizer.encode(text, add_special_tokens=False).input_ids, config
            )
            for text in texts
        ]
        while pipeline.has_non_finished_requests():
            pipeline.step()
        took_s = time.perf_counter() - start_s
        for handle in handles:
            assert sum(len(one.generated_ids) for one in handle.read_all()) == NUM_TOKENS
        return took_s

    serve_rounds(round_s)


def direct_llamacpp(checkpoint: Path) -> None:
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
            body = {
                "prompt": text,
                "n_predict": NUM_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
            server.handle_completions(body, lambda response: None)

        start_s = time.perf_counter()
        threads = [threading.Thread(target=one, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start_s

    serve_rounds(round_s)


OPENERS: dict[str, Opener] = {
    "openvino": ours("openvino"),
    "openvino-int8": ours("openvino", activations="int8"),
    "direct-openvino": direct("openvino", "OpenVINO GenAI, called directly"),
    "native": ours("native"),
    "native-float32": ours("native", "float32"),
    "native-bfloat16": ours("native", "bfloat16"),
    "pipeline-float32": pipeline("float32"),
    "pipeline-bfloat16": pipeline("bfloat16"),
    "direct-llamacpp": direct("llamacpp", "llama.cpp, called directly"),
}
DIRECT = {"openvino": direct_openvino, "llamacpp": direct_llamacpp}


def table(results: dict[tuple[str, int], list[Round]]) -> str:
    """`relative` is the median, over the rounds, of the speed relative to the first way."""
    lines = [
        "| way | concurrent requests | tokens/s, median | range | relative to the first "
        "| first token, median ms |",
        "|---|---:|---:|---|---:|---:|",
    ]
    first_way = next(iter(results))[0]
    for (way, concurrency), rounds in results.items():
        rates = [concurrency * NUM_TOKENS / one.took_s for one in rounds]
        relative = statistics.median(
            other.took_s / one.took_s
            for one, other in zip(rounds, results[first_way, concurrency], strict=True)
        )
        first_s = [value for one in rounds for value in one.first_s]
        first = f"{statistics.median(first_s) * 1000:.0f}" if first_s else ""
        span = f"{min(rates):.0f} - {max(rates):.0f}"
        rate = f"{statistics.median(rates):.1f}"
        lines.append(f"| {way} | {concurrency} | {rate} | {span} | {relative:.2f} | {first} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=cache_dir() / PULLED["smollm2"])
    parser.add_argument("--only", help="some of before, " + ", ".join(OPENERS))
    parser.add_argument("--before", type=Path, help="an earlier checkout")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--direct", choices=DIRECT, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.direct:
        DIRECT[arguments.direct](arguments.checkpoint)
        return
    if not arguments.checkpoint.exists():
        parser.error("no checkpoint: run `naiad pull smollm2`, or set --checkpoint to a GGUF file")
    openers = dict(OPENERS)
    if arguments.before is not None:
        openers = {"before": ours("openvino", before=arguments.before.resolve()), **openers}
    names = arguments.only.split(",") if arguments.only else list(openers)
    unknown = [name for name in names if name not in openers]
    if unknown:
        parser.error(f"--only: '{unknown[0]}' is not one of {', '.join(openers)}")
    results: dict[tuple[str, int], list[Round]] = {}
    with contextlib.ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for name in names:
            runners |= stack.enter_context(openers[name](arguments.checkpoint))
        numbers = iter(range(1 << 30))
        for concurrency in CONCURRENCIES:
            for _ in range(arguments.rounds):
                for way, run in runners.items():
                    results.setdefault((way, concurrency), []).append(
                        run(prompts(concurrency, next(numbers)))
                    )
        print(
            table(
                {
                    (way, concurrency): results[way, concurrency]
                    for way in runners
                    for concurrency in CONCURRENCIES
                }
            )
        )


if __name__ == "__main__":
    main()
