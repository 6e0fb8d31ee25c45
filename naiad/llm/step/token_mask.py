"""Computes which tokens may follow a sequence that has a grammar or bad words of several tokens.

In:  a host-bound Sequence with all of its tokens known. Out: a row of bits, 1 for allowed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from naiad.llm.sequence import Sequence


def fill_token_mask(sequence: Sequence, row: NDArray[np.int32]) -> None:
    if sequence.grammar is not None:
        sequence.grammar.fill_bitmask(row)
    else:
        row.fill(-1)
    bits = row.view(np.uint32)
    for word in sequence.bad_words:
        beginning = len(word) - 1
        if sequence.tokens[-beginning:] == word[:-1] and sequence.num_output_tokens >= beginning:
            bits[word[-1] // 32] &= np.uint32(~(1 << (word[-1] % 32)) & 0xFFFFFFFF)
