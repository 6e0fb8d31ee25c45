"""How many tokens of prompts a step may compute while other sequences wait for their next token.

In:  the prompt tokens and the time of each finished step. Out: a number of tokens for the next step
     that keeps it near the maximum delay.
The time per token grows with the context and with other processes on the CPU, so it is measured all
the time. The time of the other rows of a step counts as that of its prompts, which errs on the
short side.
"""

from __future__ import annotations

MIN_TOKENS = 32
"""A prompt always goes on by this many tokens, however slow the machine is: fewer tokens would read
the weights of the model for nothing."""
GRAIN = 16
WEIGHT = 0.3
"""The weight of the latest step in the mean."""


class PrefillPace:
    def __init__(self, max_delay_ms: float) -> None:
        """0 means no limit."""
        self._max_delay_ns = max_delay_ms * 1e6
        self._token_ns = 0.0
        """The mean time per token; 0 before the first step with a prompt."""

    def on_step(self, num_prompt_tokens: int, elapsed_ns: int) -> None:
        if num_prompt_tokens < GRAIN:  # the rest of a prompt says little about longer parts
            return
        token_ns = elapsed_ns / num_prompt_tokens
        if self._token_ns:
            token_ns = self._token_ns + WEIGHT * (token_ns - self._token_ns)
        self._token_ns = token_ns

    def max_tokens(self, budget: int) -> int:
        """At most `budget`."""
        if not self._token_ns or not self._max_delay_ns:
            return budget
        count = int(self._max_delay_ns / self._token_ns) // GRAIN * GRAIN
        return min(budget, max(count, MIN_TOKENS))
