"""Batch sizes of which steps of one-token rows are captured (cuda_graphs.py), and what the graphs
keep of the device's memory.

Free of CUDA: the memory is planned (memory_plan.py) before there is a graph.
"""

from __future__ import annotations

MAX_ROWS_ONE_WAY = 80
"""With more rows, how long they are decides about the decode attention's tile, so there are two
graphs."""


def ladder(max_num_seqs: int) -> list[int]:
    """Fine where a padded row costs most."""
    sizes = [1, 2, 4, 8, *range(16, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [size for size in sizes if size < max_num_seqs] + [max_num_seqs]


def kinds(size: int) -> tuple[bool, ...]:
    """Of the graphs of this size: whether they are for short sequences."""
    return (True, False) if size > MAX_ROWS_ONE_WAY else (True,)


def num_kept_rows(max_num_seqs: int) -> int:
    """Rows of logits that stay allocated: each graph has its own."""
    return sum(size * len(kinds(size)) for size in ladder(max_num_seqs))
