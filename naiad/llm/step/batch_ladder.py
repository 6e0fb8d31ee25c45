"""The batch sizes for which steps of one-token rows are captured (cuda_graphs.py), and how many
rows of logits the graphs keep allocated.

This file does not use CUDA, because memory is planned (memory_plan.py) before there is a graph.
"""

from __future__ import annotations

MAX_ROWS_ONE_WAY = 80
"""With more rows than this, the decode attention's tile depends on the sequences' lengths, so there
are two graphs."""


def ladder(max_num_seqs: int) -> list[int]:
    """Returns the batch sizes; the steps are small where a padded row costs most."""
    sizes = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def kinds(size: int) -> tuple[bool, ...]:
    """Returns, for each graph of this size, whether it is for short sequences."""
    return (True, False) if size > MAX_ROWS_ONE_WAY else (True,)


def num_kept_rows(max_num_seqs: int) -> int:
    """Returns the number of rows of logits that stay allocated; each graph has its own."""
    return sum(size * len(kinds(size)) for size in ladder(max_num_seqs))
