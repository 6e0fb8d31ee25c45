"""Which part of a model each rank of a tensor-parallel engine holds: whole attention heads, a slice
of the MLP, a slice of the vocabulary.

In:  the DecoderConfig of the whole model, and a rank. Out: ranges of rows and columns, and the
     DecoderConfig of the rank's part.
Rules: matrices that read the residual stream (qkv, up, head) are cut by rows, those that write it
       (o, down) by columns, so that a layer needs two sums over the ranks. Where there are fewer KV
       heads than ranks, several ranks hold the same one. The vocabulary is cut into equal parts;
       the last one is filled up.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from naiad.errors import invalid_arg
from naiad.llm.models.decoder_config import DecoderConfig

Range = tuple[int, int]
"""First, and one after the last."""
CUT_BY_ROWS = ("qkv", "up")
CUT_BY_COLUMNS = ("o", "down")


@dataclass(slots=True, frozen=True)
class Shard:
    rank: int
    size: int

    def config(self, whole: DecoderConfig) -> DecoderConfig:
        """Returns the config of this rank's layers; the vocabulary stays the whole one."""
        return msgspec.structs.replace(
            whole,
            num_heads=whole.num_heads // self.size,
            num_kv_heads=max(1, whole.num_kv_heads // self.size),
            intermediate_size=whole.intermediate_size // self.size,
        )

    def rows(self, whole: DecoderConfig, module: str) -> list[Range]:
        """Returns the rows of `qkv` or `up` in the order of DecoderWeights."""
        if module == "up":
            inner = whole.intermediate_size
            own = self._part(inner)
            starts = (0, inner) if whole.is_gated else (0,)
            return [(start + own[0], start + own[1]) for start in starts]
        part = self.config(whole)
        first_kv = self.rank * whole.num_kv_heads // self.size * whole.head_dim
        keys = whole.q_size + first_kv
        values = keys + whole.kv_size
        return [
            self._part(whole.q_size),
            (keys, keys + part.kv_size),
            (values, values + part.kv_size),
        ]

    def columns(self, whole: DecoderConfig, module: str) -> Range:
        """Returns the columns of `o` or `down`."""
        return self._part(whole.q_size if module == "o" else whole.intermediate_size)

    def num_tokens(self, whole: DecoderConfig) -> int:
        """Returns the rows of the embedding and of the head, filled up ones included."""
        return -(-whole.vocab_size // self.size)

    def tokens(self, whole: DecoderConfig) -> Range:
        """Returns the tokens whose rows this rank holds."""
        count = self.num_tokens(whole)
        start = min(self.rank * count, whole.vocab_size)
        return start, min(start + count, whole.vocab_size)

    def _part(self, total: int) -> Range:
        count = total // self.size
        return self.rank * count, (self.rank + 1) * count


def check_split(config: DecoderConfig, size: int) -> None:
    """Raises NaiadError if the model cannot be cut into so many parts."""
    reason = _obstacle(config, size)
    if reason:
        sizes = [n for n in range(1, config.num_heads + 1) if not _obstacle(config, n)]
        raise invalid_arg(
            f"tensor_parallel_size is {size}, but the model has {reason}; expected one of "
            f"{', '.join(str(n) for n in sizes)}"
        )


def _obstacle(config: DecoderConfig, size: int) -> str:
    if config.num_heads % size:
        return f"{config.num_heads} attention heads, which {size} does not divide"
    if config.num_kv_heads % size and size % config.num_kv_heads:
        return f"{config.num_kv_heads} KV heads, which {size} neither divides nor is a multiple of"
    if config.intermediate_size % size:
        return f"an MLP of {config.intermediate_size}, which {size} does not divide"
    return ""
