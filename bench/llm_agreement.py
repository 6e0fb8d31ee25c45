"""Does each CPU engine say what float32 says? Greedy tokens of 50 everyday questions, distributions
over 5,000 tokens of text.

    naiad pull smollm2; python -m bench.llm_agreement
    python -m bench.llm_agreement --only openvino --num-tokens 1000

The reference is transformers in float32 on the same GGUF file, dequantized. Formats are those of
`engine` and `dtype`; the last line is OpenVINO's own reader of GGUF, which the server does not use,
for comparison. The text is this repository's documentation, in windows of 512 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers

from naiad.backends.llm.checkpoint import PULLED, cache_dir
from naiad.llm.checkpoint.gguf import GgufCheckpoint, open_gguf
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from tests.unit.llm import agreement

WINDOW = 512
TEXTS = ("README.md", "ARCHITECTURE.md", "docs/llm-engine.md", "docs/llm-backend.md")
SETTINGS = EngineSettings(
    device="cpu",
    max_num_batched_tokens=WINDOW,
    num_kv_blocks=256,
    max_num_seqs=4,
    enable_prefix_caching=False,
)

Opened = tuple[agreement.Logits, Callable[[list[int]], list[int]]]
"""Logits of a text, and greedy tokens after a prompt."""
Opener = Callable[[Path], contextlib.AbstractContextManager[Opened]]


def native(dtype: str) -> Opener:
    @contextlib.contextmanager
    def open_it(path: Path) -> Iterator[Opened]:
        settings = EngineSettings(
            device="cpu",
            dtype=dtype,
            max_num_batched_tokens=WINDOW,
            num_kv_blocks=256,
            max_num_seqs=4,
            enable_prefix_caching=False,
        )
        engine = load_engine(path, settings)
        yield (
            agreement.native_logits(engine),
            lambda prompt: agreement.engine_greedy(engine, prompt),
        )

    return open_it


def openvino(activations: str) -> Opener:
    @contextlib.contextmanager
    def open_it(path: Path) -> Iterator[Opened]:
        from naiad.llm.openvino.engine import open_openvino

        settings = msgspec.structs.replace(SETTINGS, activations=activations)
        engine = open_openvino(path, settings, 2, cache_dir(), print)
        assert engine.conversion is not None
        logits = agreement.openvino_logits(engine.conversion.folder, 2, engine.properties)
        yield logits, lambda prompt: agreement.engine_greedy(engine, prompt)

    return open_it


@contextlib.contextmanager
def reader(path: Path) -> Iterator[Opened]:
    """OpenVINO's reader writes its model next to the file."""
    import numpy as np
    import openvino as ov
    import openvino_genai

    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "model.gguf"
        link.symlink_to(path)
        pipeline = openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.apply_chat_template = (
            agreement.NUM_GREEDY,
            True,
            False,
        )

        def greedy(prompt: list[int]) -> list[int]:
            return [
                int(token)
                for token in pipeline.generate(
                    ov.Tensor(np.array([prompt], np.int64)), config
                ).tokens[0]
            ]

        yield agreement.openvino_logits(Path(folder), 2), greedy


OPENERS: dict[str, tuple[str, Opener]] = {
    "openvino": ("openvino engine", openvino("float32")),
    "openvino-int8": ("openvino engine, activations: int8", openvino("int8")),
    "native": ("native engine", native("auto")),
    "native-float32": ("native engine, float32", native("float32")),
    "native-bfloat16": ("native engine, bfloat16", native("bfloat16")),
    "reader": ("OpenVINO's own reader of GGUF (not served)", reader),
}


def windows(checkpoint: GgufCheckpoint, num_tokens: int) -> list[list[int]]:
    tokens = checkpoint.tokenizer.encode("".join(Path(name).read_text() for name in TEXTS))[
        :num_tokens
    ]
    return [tokens[start : start + WINDOW] for start in range(0, len(tokens), WINDOW)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, default=cache_dir() / PULLED["smollm2"])
    parser.add_argument("--only", default=",".join(OPENERS), help="of " + ", ".join(OPENERS))
    parser.add_argument("--num-tokens", type=int, default=5000)
    arguments = parser.parse_args()
    path: Path = arguments.checkpoint
    if not path.exists():
        parser.error(
            "no checkpoint: run `naiad pull smollm2`, or name a GGUF file with --checkpoint"
        )
    checkpoint = open_gguf(path)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    texts = windows(checkpoint, arguments.num_tokens)
    prompts = [
        checkpoint.tokenizer.encode(agreement.as_chat(checkpoint, question), False)
        for question in agreement.QUESTIONS
    ]
    expected = [agreement.greedy(model, prompt) for prompt in prompts]
    reference = agreement.kept(agreement.reference_logits(model))
    print(
        "| way | same first 8 tokens | mean KL | same best token | tokens of text "
        "|\n|---|---:|---:|---:|---:|",
        flush=True,
    )
    for name in arguments.only.split(","):
        way, opener = OPENERS[name]
        with opener(path) as (logits, greedy):
            same = sum(
                greedy(prompt) == tokens for prompt, tokens in zip(prompts, expected, strict=True)
            )
            found = agreement.compare(reference, logits, texts)
        print(
            f"| {way} | {same} of {len(prompts)} | {found.mean_kl:.5f} | {found.same_best:.1%} | "
            f"{found.num_tokens} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
