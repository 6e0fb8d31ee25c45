"""One completion in progress: its tokens, how many of them are computed, and the blocks and the
slot that it holds.

In:  Engine.submit makes one per completion. Out: the scheduler advances the computed tokens and the
     blocks, postprocessing the tokens.
Invariant: length = tokens known to the host + tokens sampled but still on the device (num_pending,
           0 or 1 between steps).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from naiad.llm.block_pool import chain_hash, root_hash
from naiad.llm.generation import GenerationRequest, Grammar

if TYPE_CHECKING:
    from naiad.llm.text.completion_text import CompletionText

NO_SLOT = -1


class Status(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


class Sequence:
    __slots__ = (
        "arrival_ns",
        "bad_words",
        "begin_ns",
        "block_hashes",
        "blocks",
        "first_token_ns",
        "grammar",
        "index",
        "is_greedy",
        "last_token_ns",
        "logit_bias",
        "max_length",
        "min_length",
        "num_cached_tokens",
        "num_charged",
        "num_computed",
        "num_pending",
        "num_prompt_tokens",
        "num_remembered",
        "num_staged_blocks",
        "order",
        "request",
        "seed",
        "shared_hashes",
        "slot",
        "status",
        "stop_token_ids",
        "text",
        "tokens",
    )

    def __init__(
        self,
        request: GenerationRequest,
        index: int,
        prompt: list[int],
        max_length: int,
        seed: int,
        order: int,
    ) -> None:
        parameters = request.parameters
        self.request = request
        self.index = index
        self.order = order
        self.seed = seed
        self.tokens = prompt
        """The completions of a request share their prompt's list until the scheduler starts them:
        a hundred copies of a long prompt at once would delay a step."""
        self.num_prompt_tokens = len(prompt)
        self.max_length = max_length
        self.min_length = len(prompt) + parameters.min_tokens
        self.is_greedy = parameters.temperature == 0.0
        self.stop_token_ids: frozenset[int] = frozenset()
        self.logit_bias: dict[int, float] = parameters.logit_bias
        """Includes the bad words that are one token."""
        self.bad_words: list[list[int]] = []
        """Bad words of several tokens. The host must see each token to know what may not follow
        it."""
        self.grammar: Grammar | None = None
        self.text: CompletionText | None = None
        self.status = Status.WAITING
        self.slot = NO_SLOT
        self.blocks: list[int] = []
        self.block_hashes: list[bytes] = []
        self.shared_hashes: list[bytes] = []
        """Hashes of the prompt's full blocks, in one list for all completions of a request."""
        self.num_remembered = 0
        self.num_staged_blocks = 0
        self.num_computed = 0
        self.num_pending = 0
        self.num_cached_tokens = -1
        self.num_charged = 0
        """Tokens that count as used by the request's key."""
        self.arrival_ns = 0
        self.begin_ns = 0
        self.first_token_ns = 0
        self.last_token_ns = 0

    @property
    def length(self) -> int:
        return len(self.tokens) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens still to be computed; 0 if the last token is on the device and no other
        may follow it."""
        length = len(self.tokens) + self.num_pending
        return 0 if length >= self.max_length else length - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def is_scored(self) -> bool:
        """True while log-probabilities of its prompt are computed."""
        return (
            self.request.prompt_logprobs is not None
            and self.index == 0
            and len(self.tokens) == self.num_prompt_tokens
        )

    @property
    def rank(self) -> tuple[int, int]:
        """The sequence with the smallest rank is served first and preempted last."""
        return (self.request.priority, self.order)

    @property
    def is_host_bound(self) -> bool:
        """True if the host must see a token before the next one is sampled. Steps then cannot
        overlap."""
        return self.grammar is not None or bool(self.bad_words)

    def hash_full_blocks(self, num_tokens: int, block_size: int) -> list[bytes]:
        """Returns hashes of the blocks that the first `num_tokens` fill; each is computed once."""
        count = num_tokens // block_size
        hashes, request = self.block_hashes, self.request
        while len(hashes) < count:
            shared = self.shared_hashes
            if len(hashes) < len(shared):
                hashes.extend(shared[len(hashes) : count])
                continue
            parent = hashes[-1] if hashes else root_hash(request.cache_salt, request.cache_owner)
            start, end = len(hashes) * block_size, (len(hashes) + 1) * block_size
            hashes.append(chain_hash(parent, self.tokens[start:end]))
            if end <= self.num_prompt_tokens:
                shared.append(hashes[-1])
        return hashes[:count]
