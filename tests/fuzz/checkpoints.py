"""Targets in this process: headers of GGUF and safetensors files, and what is read from them.

The first byte of a safetensors input chooses the file that it is: the weights, their index or
config.json.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from naiad.errors import NaiadError
from tests.fuzz.target import target

MAX_VALUES = 1 << 16
"""Tensors with more values are not dequantized: the fuzzer's time is for headers."""
GGUF_TOKENS = (
    b"GGUF", b"general.architecture", b"general.alignment", b"llama.block_count", b"llama",
    b"tokenizer.ggml.tokens", b"tokenizer.ggml.scores", b"tokenizer.ggml.model", b"gpt2",
    b"tokenizer.ggml.merges", b"tokenizer.ggml.bos_token_id", b"token_embd.weight",
    b"llama.rope.scaling.type", b"llama.attention.head_count", b"\x09\0\0\0", b"\x08\0\0\0",
)  # fmt: skip
SAFETENSORS_TOKENS = (
    b'"dtype":', b'"shape":', b'"data_offsets":', b'"F32"', b'"BF16"', b'"F8_E4M3"',
    b"__metadata__", b"weight_map", b"model.safetensors", b'"model_type":', b'"llama"', b"[0,0]",
)  # fmt: skip
NAMES = ("model.safetensors", "model.safetensors.index.json", "config.json")


@cache
def folder() -> Path:
    """A folder of this process, in memory where there is such a file system."""
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    keeper = tempfile.TemporaryDirectory(prefix="naiad-fuzz-", dir=parent)
    _keepers.append(keeper)
    return Path(keeper.name)


_keepers: list[tempfile.TemporaryDirectory[str]] = []


@target(tokens=GGUF_TOKENS, needs=("tokenizers",))
def gguf(data: bytes) -> None:
    from naiad.llm.checkpoint.dequantize import dequantize
    from naiad.llm.checkpoint.gguf_config import hugging_face_names, read_gguf_config
    from naiad.llm.checkpoint.gguf_file import GgufFile
    from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer

    path = folder() / "model.gguf"
    path.write_bytes(data)
    try:
        file = GgufFile(path)
    except NaiadError:
        return
    file.without_tensors()
    for tensor in file.tensors.values():
        assert len(file.raw(tensor)) == tensor.num_bytes
        size = 1
        for dimension in tensor.shape:
            size *= dimension
        if 0 < size <= MAX_VALUES:
            dequantize(tensor.kind, file.raw(tensor), tensor.shape)
    for read in (
        lambda: hugging_face_names(file, read_gguf_config(file, path).num_layers),
        lambda: build_tokenizer(file.metadata),
    ):
        try:
            read()
        except NaiadError:
            pass


@target(tokens=SAFETENSORS_TOKENS, needs=("torch", "safetensors", "tokenizers"))
def safetensors(data: bytes) -> None:
    import torch

    from naiad.llm.checkpoint.folder import open_folder
    from naiad.llm.checkpoint.safetensors_source import SafetensorsSource
    from naiad.llm.models.registry import find_family

    root = folder() / "checkpoint"
    root.mkdir(exist_ok=True)
    for path in root.iterdir():
        path.unlink()
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    for other in (*NAMES[:1], *NAMES[2:]):
        seed = Path(__file__).parent / "seeds" / "checkpoint" / other
        (root / other).write_bytes(seed.read_bytes())
    (root / name).write_bytes(data[1:])
    try:
        checkpoint = open_folder(root)
        family = find_family(checkpoint.config["model_type"])
        if family is not None:
            family.checked_config(checkpoint.config, "config.json")
        source = SafetensorsSource(root, torch.device("cpu"))
        for tensor in sorted(source.names()):
            source.get(tensor)
    except NaiadError:
        pass
