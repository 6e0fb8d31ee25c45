"""`prefix`: the replica that is predicted to give the first token soonest.

For each replica, the prediction counts the tokens of the prompt that its cache does not hold, the
tokens of requests before it that have no first token yet, and the requests that run
(naiad.router.wait_model). The smallest prediction wins; there is no threshold and no weight.
Rule: a decision counts at once, as tokens ahead and as blocks that will be cached soon. So requests
      with a hot prefix follow each other to the replica that has it until another one, prefill
      included, is predicted to be faster.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from naiad.router.policies.least_load import LeastLoad
from naiad.router.prefix_index import PrefixIndex, block_keys, root_key
from naiad.router.wait_model import WaitModel

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest
    from naiad.router.replica import Replica


class Prompt(msgspec.Struct, frozen=True):
    tokens: Sequence[int] = ()
    """Empty for a request that has no prompt."""
    salt: str = ""
    """Prompts with different salts share nothing."""
    is_stream: bool = True
    """The first byte of the response comes with the first token."""


ReadPrompt: TypeAlias = "Callable[[RoutedRequest], Prompt]"
_UNKNOWN_BLOCK_SIZE = 16
INLINE_BYTES = 8 * 1024
"""A larger body is tokenized by a thread: it would hold up the event loop."""


class _Work:
    """What one request means to the replica that has it."""

    __slots__ = (
        "has_begun",
        "is_stream",
        "keys",
        "num_ahead",
        "num_running",
        "num_tokens",
        "num_uncached",
    )

    def __init__(self, num_tokens: int, keys: list[int], is_stream: bool) -> None:
        self.num_tokens = num_tokens
        self.keys = keys
        self.is_stream = is_stream
        self.num_uncached = 0
        self.num_ahead = 0
        self.num_running = 0
        self.has_begun = False


class Prefix:
    def __init__(
        self,
        index: PrefixIndex,
        read_prompt: ReadPrompt,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index = index
        self.waits = WaitModel()
        self._read_prompt = read_prompt
        self._clock_s = clock_s
        self._least_load = LeastLoad()
        self._work: dict[RoutedRequest, _Work] = {}
        self._tokens_ahead: dict[str, int] = {}
        """Tokens of requests that have no first token yet, for each replica."""
        self._unseen: dict[str, list[tuple[float, int, _Work]]] = {}
        """Requests whose first token nobody sees, because their responses come as a whole, and when
        it is predicted, for each replica."""
        self._num_unseen = 0
        self._executor: ThreadPoolExecutor | None = None

    def prepare(self, request: RoutedRequest, then: Callable[[], bool]) -> bool:
        """Returns True if the prompt is being tokenized; `then` is called on the event loop
        afterwards, and returns False if the request is over by then."""
        if len(request.body) <= INLINE_BYTES:
            return False
        if self._executor is None:
            self._executor = ThreadPoolExecutor(2, "tokenize")
        reading = asyncio.get_running_loop().run_in_executor(
            self._executor, self._read_prompt, request
        )

        def on_read(done: asyncio.Future[Prompt]) -> None:
            if done.cancelled():
                return
            is_read = done.exception() is None
            self._note(request, done.result() if is_read else Prompt())
            if not then():
                self._work.pop(request, None)

        reading.add_done_callback(on_read)
        return True

    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
        work = self._work_of(request)
        if self._unseen:
            self._begin_unseen()
        # Replicas with the same prediction get requests in turn.
        best = self._least_load.choose(request, replicas)
        best_s = self._predict_s(work, best)
        for replica in replicas:
            wait_s = self._predict_s(work, replica)
            if wait_s < best_s:
                best, best_s = replica, wait_s
        return best

    def _predict_s(self, work: _Work, replica: Replica) -> float:
        name = replica.name
        num_cached = self.index.num_cached(name, work.keys) * self._block_size
        return self.waits.predict_s(
            name,
            self._tokens_ahead.get(name, 0) + work.num_tokens - num_cached,
            replica.num_in_flight,
        )

    def on_sent(self, request: RoutedRequest, replica: Replica) -> None:
        work = self._work_of(request)
        name = replica.name
        num_cached = self.index.num_cached(name, work.keys) * self._block_size
        work.num_uncached = max(1, work.num_tokens - num_cached)
        work.num_ahead = self._tokens_ahead.get(name, 0)
        work.num_running = replica.num_in_flight - 1  # this request is counted already
        work.has_begun = False
        if not work.is_stream:
            wait_s = self.waits.predict_s(
                name, work.num_ahead + work.num_uncached, work.num_running
            )
            self._num_unseen += 1
            heapq.heappush(
                self._unseen.setdefault(name, []),
                (self._clock_s() + wait_s, self._num_unseen, work),
            )
        self._tokens_ahead[name] = work.num_ahead + work.num_uncached
        self.index.expect(name, work.keys)

    def on_first_byte(self, request: RoutedRequest, replica: Replica, wait_s: float) -> None:
        work = self._work.get(request)
        if work is None or work.has_begun or not work.is_stream:
            return
        self._begin(work, replica.name)
        if work.num_tokens:
            self.waits.observe(
                replica.name, work.num_ahead + work.num_uncached, work.num_running, wait_s
            )

    def on_ended(self, request: RoutedRequest, replica: Replica) -> None:
        work = self._work.pop(request, None)
        if work is not None and not work.has_begun:
            self._begin(work, replica.name)

    def _begin(self, work: _Work, name: str) -> None:
        work.has_begun = True
        self._tokens_ahead[name] = max(0, self._tokens_ahead.get(name, 0) - work.num_uncached)

    def _begin_unseen(self) -> None:
        now_s = self._clock_s()
        for name, due in list(self._unseen.items()):
            while due and (due[0][0] <= now_s or due[0][2].has_begun):
                work = heapq.heappop(due)[2]
                if not work.has_begun:
                    self._begin(work, name)
            if not due:
                del self._unseen[name]

    @property
    def _block_size(self) -> int:
        return self.index.block_size or _UNKNOWN_BLOCK_SIZE

    def _work_of(self, request: RoutedRequest) -> _Work:
        work = self._work.get(request)
        if work is None:
            work = self._note(request, self._read_prompt(request))
        return work

    def _note(self, request: RoutedRequest, prompt: Prompt) -> _Work:
        tokens = prompt.tokens
        keys = block_keys(tokens, self._block_size, root_key(prompt.salt)) if tokens else []
        work = self._work[request] = _Work(len(tokens), keys, prompt.is_stream)
        return work
