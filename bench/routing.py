"""Simulates routing policies in front of language-model engines at the pace of an H200.

    python -m bench.routing [--requests 3000] [--seed 1] [--write docs/images/routing.svg]

The policies are the router's own classes, with its fleet and its index; only engines, traffic and
the clock are simulated. An engine works in steps: each step computes one token for every running
request and up to 8,192 tokens of prompts, in the order in which they came. A step lasts
4.2 ms + 0.042 ms per running request + 1 s per 43,000 tokens of prompts: an 8B model in bf16, as
measured (bench/RESULTS.md). The prefix cache holds 400,000 tokens, and the block that was used
least recently goes first. Events about it reach the router after 5 ms.
Goals: for traffic that shares prefixes, the median time to first token is at most half of
round_robin's and the hit rate at least 90% of one infinite cache. For no traffic is the median or
the 95th percentile worse than least_load's, and a hot prefix does not pile up on one replica.
The first goal is for traffic whose prefixes exceed one cache. Where every cache holds all of them
after a while (few_prompts, hot_prefix), the median is a hit with every policy, and no policy can
halve it: docs/router.md has the arithmetic.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import statistics
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from naiad import log
from naiad.core.tensor import Buffer
from naiad.router.config import ReplicaSpec, RouterConfig
from naiad.router.fleet import Fleet
from naiad.router.policies.least_load import LeastLoad
from naiad.router.policies.prefix import Prefix, Prompt
from naiad.router.policies.round_robin import RoundRobin
from naiad.router.policies.session import Session
from naiad.router.policy import Policy, RoutedRequest
from naiad.router.prefix_index import PrefixIndex, block_keys
from naiad.router.replica import Replica, ReplicaState

BLOCK = 32
CACHE_TOKENS = 400_000
STEP_S = 0.0042
PER_RUNNING_S = 0.000042
PREFILL_TOKENS_PER_S = 43_000.0
STEP_TOKENS = 8192
MAX_RUNNING = 256
EVENT_DELAY_S = 0.005


class Request:
    """A prompt and the number of tokens to write; see RoutedRequest."""

    model, version, path = "m", "", "/v1/chat/completions"
    body: Buffer = b""

    def __init__(
        self, arrival_s: float, tokens: Sequence[int], num_out: int, session: str = ""
    ) -> None:
        self.arrival_s = arrival_s
        self.tokens = tokens
        self.num_out = num_out
        self.session = session
        self.keys = block_keys(tokens, BLOCK)
        self.first_token_s = 0.0
        self.num_cached = 0
        self.left = 0
        self.num_written = 0
        self.follow_up: Callable[[float], Request | None] | None = None
        """Makes the next request of a conversation when this one has ended."""

    def header(self, name: str) -> str:
        return self.session if name == "x-session-id" else ""


class Engine:
    def __init__(self, replica: Replica, simulation: Simulation) -> None:
        self.replica = replica
        self._simulation = simulation
        self._waiting: deque[Request] = deque()
        self._prefilling: deque[Request] = deque()
        self._running: list[Request] = []
        self._cache: OrderedDict[int, None] = OrderedDict()
        self._is_stepping = False

    def submit(self, request: Request) -> None:
        self._waiting.append(request)
        if not self._is_stepping:
            self._is_stepping = True
            self._simulation.at(self._simulation.now_s, self._step)

    def _step(self) -> None:
        now_s = self._simulation.now_s
        while self._waiting and len(self._running) + len(self._prefilling) < MAX_RUNNING:
            request = self._waiting.popleft()
            num_cached = 0
            for key in request.keys:
                if key not in self._cache:
                    break
                self._cache.move_to_end(key)
                num_cached += BLOCK
            request.num_cached = num_cached
            request.left = len(request.tokens) - num_cached
            self._prefilling.append(request)
        budget = STEP_TOKENS - len(self._running)
        computed = 0
        begun: list[Request] = []
        while self._prefilling and computed < budget:
            request = self._prefilling[0]
            part = min(request.left, budget - computed)
            request.left -= part
            computed += part
            if request.left == 0:
                begun.append(self._prefilling.popleft())
        if not computed and not self._running:
            self._is_stepping = False
            return
        lasts_s = STEP_S + PER_RUNNING_S * len(self._running) + computed / PREFILL_TOKENS_PER_S
        self._simulation.at(now_s + lasts_s, lambda: self._end_step(begun))

    def _end_step(self, begun: list[Request]) -> None:
        now_s = self._simulation.now_s
        ended = []
        for request in self._running:
            request.num_written += 1
            if request.num_written >= request.num_out:
                ended.append(request)
        if ended:
            self._running = [r for r in self._running if r.num_written < r.num_out]
            for request in ended:
                self._simulation.on_ended(request, self.replica)
        for request in begun:
            request.first_token_s = now_s
            request.num_written = 1
            self._store(request.keys)
            self._running.append(request)
            self._simulation.on_first_token(request, self.replica)
        self._step()

    def _store(self, keys: Sequence[int]) -> None:
        cache = self._cache
        new = [key for key in keys if key not in cache]
        for key in keys:
            cache[key] = None
            cache.move_to_end(key)
        removed = []
        while len(cache) > CACHE_TOKENS // BLOCK:
            removed.append(cache.popitem(last=False)[0])
        self._simulation.on_cache(self.replica, new, removed)


class Simulation:
    def __init__(self, policy_name: str, num_replicas: int, requests: Iterator[Request]) -> None:
        self.now_s = 0.0
        self.done: list[Request] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.fleet = Fleet(RouterConfig(), clock_s=self.clock_s)
        self.index = PrefixIndex(BLOCK, self.clock_s)
        self.policy: Policy = self._build(policy_name)
        self._engines: dict[str, Engine] = {}
        self.num_routed: Counter[str] = Counter()
        for number in range(num_replicas):
            replica = self.fleet.add(ReplicaSpec(f"http://10.0.0.{number}:80"), "flag")
            self.fleet.set_models(replica, {"m": frozenset()}, {})
            self.fleet.set_state(replica, ReplicaState.READY, "")
            self._engines[replica.name] = Engine(replica, self)
        self._observer = self.policy if isinstance(self.policy, Prefix) else None
        for request in requests:
            self.arrive(request)

    def _build(self, name: str) -> Policy:
        if name == "prefix":
            return Prefix(self.index, read_prompt, self.clock_s)
        policies: dict[str, Callable[[], Policy]] = {
            "round_robin": RoundRobin,
            "least_load": LeastLoad,
            "session": Session,
        }
        return policies[name]()

    def clock_s(self) -> float:
        return self.now_s

    def at(self, when_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when_s, next(self._order), action))

    def arrive(self, request: Request) -> None:
        self.at(request.arrival_s, lambda: self._route(request))

    def run(self) -> None:
        while self._queue:
            self.now_s, _, action = heapq.heappop(self._queue)
            action()

    def _route(self, request: Request) -> None:
        replica = self.policy.choose(request, self.fleet.candidates("m"))
        self.fleet.on_sent(replica)
        self.num_routed[replica.name] += 1
        if self._observer is not None:
            self._observer.on_sent(request, replica)
        self._engines[replica.name].submit(request)

    def on_first_token(self, request: Request, replica: Replica) -> None:
        if self._observer is not None:
            wait_s = self.now_s - request.arrival_s
            self._observer.on_first_byte(request, replica, wait_s)

    def on_ended(self, request: Request, replica: Replica) -> None:
        self.fleet.on_ended(replica)
        if self._observer is not None:
            self._observer.on_ended(request, replica)
        self.done.append(request)
        if request.follow_up is not None:
            following = request.follow_up(self.now_s)
            if following is not None:
                self.arrive(following)

    def on_cache(self, replica: Replica, new: list[int], removed: list[int]) -> None:
        """The engine's keys are those of the index here, so an event may name them directly."""
        blocks = self.index.replica(replica.name)

        def apply() -> None:
            blocks.has_events = True
            for key in new:
                if key not in blocks.held:
                    blocks.held.add(key)
                    blocks.key_of[key] = key
                    blocks.stored[key] = 1
                blocks.expected.pop(key, None)
            self.index.remove(replica.name, removed)

        if self._observer is not None:
            self.at(self.now_s + EVENT_DELAY_S, apply)


def read_prompt(request: RoutedRequest) -> Prompt:
    assert isinstance(request, Request)
    return Prompt(request.tokens)


# Traffic.


class Traffic:
    def __init__(self, seed: int, num_requests: int, num_replicas: int) -> None:
        self._chance = random.Random(seed)
        self._num_requests = num_requests
        self._scale = num_replicas / 4

    def _tokens(self, count: float) -> list[int]:
        return [self._chance.randrange(1 << 17) for _ in range(max(1, int(count)))]

    def _arrivals(self, per_s: float, count: int) -> Iterator[float]:
        """A Poisson process; the rate is for 4 replicas."""
        now_s = 0.0
        for _ in range(count):
            now_s += self._chance.expovariate(per_s * self._scale)
            yield now_s

    def chats(self) -> Iterator[Request]:
        """Conversations of several turns, each about a document of 2,000 to 10,000 tokens, with one
        of 8 system prompts of 1,000 tokens."""
        systems = [self._tokens(1000) for _ in range(8)]
        for number, arrival_s in enumerate(self._arrivals(3.4, self._num_requests // 6)):
            history = self._chance.choice(systems) + self._tokens(self._chance.uniform(2e3, 1e4))
            yield self._turn(arrival_s, history, self._chance.randint(3, 9), f"chat{number}")

    def _turn(self, arrival_s: float, history: list[int], left: int, session: str) -> Request:
        prompt = history + self._tokens(self._chance.uniform(50, 300))
        request = Request(arrival_s, prompt, self._chance.randint(50, 250), session)
        if left > 1:
            chance = random.Random(self._chance.random())

            def follow_up(now_s: float) -> Request:
                longer = prompt + self._tokens(request.num_out)
                return self._turn(now_s + chance.expovariate(1 / 4), longer, left - 1, session)

            request.follow_up = follow_up
        return request

    def system_prompts(self) -> Iterator[Request]:
        """Long system prompts of 6,000 tokens, 60 for each replica, some of which are asked for far
        more often. One cache holds 66 of them."""
        systems = [self._tokens(6000) for _ in range(int(240 * self._scale))]
        weights = [1 / (rank + 1) for rank in range(len(systems))]
        for number, arrival_s in enumerate(self._arrivals(34.0, self._num_requests)):
            system = self._chance.choices(systems, weights)[0]
            prompt = system + self._tokens(self._chance.uniform(50, 400))
            yield Request(arrival_s, prompt, self._chance.randint(20, 150), f"user{number % 500}")

    def few_prompts(self) -> Iterator[Request]:
        """40 system prompts of 6,000 tokens, whatever the number of replicas: every cache holds all
        of them after a while."""
        systems = [self._tokens(6000) for _ in range(40)]
        for number, arrival_s in enumerate(self._arrivals(34.0, self._num_requests)):
            prompt = self._chance.choice(systems) + self._tokens(self._chance.uniform(50, 400))
            yield Request(arrival_s, prompt, self._chance.randint(20, 150), f"user{number % 500}")

    def hot_prefix(self) -> Iterator[Request]:
        """Three of four requests share one prefix of 8,000 tokens; the others share nothing."""
        hot = self._tokens(8000)
        for number, arrival_s in enumerate(self._arrivals(30.0, self._num_requests)):
            if self._chance.random() < 0.75:
                prompt = hot + self._tokens(self._chance.uniform(50, 300))
            else:
                prompt = self._tokens(self._chance.uniform(500, 3000))
            yield Request(arrival_s, prompt, self._chance.randint(20, 200), f"user{number % 500}")

    def no_sharing(self) -> Iterator[Request]:
        for number, arrival_s in enumerate(self._arrivals(48.0, self._num_requests)):
            prompt = self._tokens(self._chance.uniform(200, 4000))
            yield Request(arrival_s, prompt, self._chance.randint(20, 200), f"user{number % 500}")

    def mix(self) -> Iterator[Request]:
        """A third of each kind that shares, and some that does not."""
        third = Traffic(self._chance.randrange(1 << 30), self._num_requests // 3, 4)
        third._scale = self._scale / 3
        return itertools.chain(
            third.chats(), third.system_prompts(), third.hot_prefix(), third.no_sharing()
        )


EXCEEDS_A_CACHE = ("chats", "system_prompts", "mix")
SHAPES = ("chats", "system_prompts", "few_prompts", "hot_prefix", "mix", "no_sharing")
POLICIES = ("round_robin", "least_load", "session", "prefix")


class Result(msgspec.Struct):
    median_ms: float
    p95_ms: float
    hit_rate: float
    ideal_rate: float
    """The hit rate of one cache that never forgets."""
    busiest: float
    """The share of the requests that the busiest replica had."""


def simulate(shape: str, policy: str, num_replicas: int, num_requests: int, seed: int) -> Result:
    traffic = Traffic(seed, num_requests, num_replicas)
    simulation = Simulation(policy, num_replicas, getattr(traffic, shape)())
    simulation.run()
    done = simulation.done
    waits_ms = sorted((r.first_token_s - r.arrival_s) * 1e3 for r in done)
    num_tokens = sum(len(r.tokens) for r in done)
    seen: set[int] = set()
    ideal = 0
    for request in sorted(done, key=lambda r: r.arrival_s):
        for key in request.keys:
            if key not in seen:
                break
            ideal += BLOCK
        seen.update(request.keys)
    return Result(
        statistics.median(waits_ms),
        waits_ms[int(len(waits_ms) * 0.95)],
        sum(r.num_cached for r in done) / num_tokens,
        ideal / num_tokens,
        max(simulation.num_routed.values()) / len(done),
    )


def check(shape: str, results: dict[str, Result]) -> list[str]:
    """What does not reach its goal."""
    prefix = results["prefix"]
    problems: list[str] = []
    if shape in EXCEEDS_A_CACHE and prefix.median_ms > results["round_robin"].median_ms / 2:
        problems.append("median above half of round_robin's")
    if prefix.hit_rate < 0.9 * prefix.ideal_rate:
        problems.append("hit rate below 90% of the ideal")
    if prefix.busiest > 2 * results["least_load"].busiest:
        problems.append(f"one replica has {prefix.busiest:.0%} of the requests")
    return problems + [
        f"{field} above least_load's"
        for field in ("median_ms", "p95_ms")
        if getattr(prefix, field) > getattr(results["least_load"], field) * 1.02
    ]


def table(rows: dict[tuple[int, str], dict[str, Result]]) -> str:
    lines = [
        "| replicas | traffic | " + " | ".join(POLICIES) + " | hit rate | ideal |",
        "|---:|---|" + "---:|" * (len(POLICIES) + 2),
    ]
    for (num_replicas, shape), results in rows.items():
        cells = [
            f"{results[policy].median_ms:,.0f} / {results[policy].p95_ms:,.0f}"
            for policy in POLICIES
        ]
        prefix = results["prefix"]
        lines.append(
            f"| {num_replicas} | {shape} | {' | '.join(cells)} | {prefix.hit_rate:.0%} | "
            f"{prefix.ideal_rate:.0%} |"
        )
    return "\n".join(lines)


def plot(rows: dict[tuple[int, str], dict[str, Result]]) -> str:
    """Bars of the medians, on a logarithmic scale."""
    colours = dict(zip(POLICIES, ("#9aa0a6", "#4285f4", "#f4b400", "#0f9d58"), strict=True))
    width, height, left, bottom = 860, 360, 60, 300
    values = [results[policy].median_ms for results in rows.values() for policy in POLICIES]
    low, high = 1.0, max(values) * 1.3

    def y(value: float) -> float:
        span = math.log(high / low)
        return bottom - (bottom - 30) * math.log(max(value, low) / low) / span

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="60" y="16">Median time to first token, ms (logarithmic)</text>',
    ]
    tick = 1
    while tick < high:
        parts.append(
            f'<line x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="#ddd"/><text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}'
            "</text>"
        )
        tick *= 10
    group = (width - left - 20) / len(rows)
    for number, ((num_replicas, shape), results) in enumerate(rows.items()):
        x = left + 6 + number * group
        bar = (group - 14) / len(POLICIES)
        for place, policy in enumerate(POLICIES):
            top = y(results[policy].median_ms)
            parts.append(
                f'<rect x="{x + place * bar:.1f}" y="{top:.1f}" width="{bar - 1:.1f}" '
                f'height="{max(bottom - top, 0.5):.1f}" fill="{colours[policy]}"/>'
            )
        label = shape.replace("_", " ")
        parts.append(
            f'<text x="{x + group / 2 - 8:.1f}" y="{bottom + 14}" text-anchor="middle">{label}'
            f'</text><text x="{x + group / 2 - 8:.1f}" y="{bottom + 28}" text-anchor="middle">'
            f"{num_replicas} replicas</text>"
        )
    for number, policy in enumerate(POLICIES):
        parts.append(
            f'<rect x="{left + number * 120}" y="338" width="10" height="10" '
            f'fill="{colours[policy]}"/>'
            f'<text x="{left + 14 + number * 120}" y="347">{policy}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--replicas", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    log.configure(log.LogSettings(log_info=False))
    rows: dict[tuple[int, str], dict[str, Result]] = {}
    num_problems = 0
    for num_replicas in arguments.replicas:
        for shape in arguments.shapes:
            count = arguments.requests * num_replicas // 4
            results = {
                policy: simulate(shape, policy, num_replicas, count, arguments.seed)
                for policy in POLICIES
            }
            rows[num_replicas, shape] = results
            problems = check(shape, results)
            num_problems += len(problems)
            print(num_replicas, shape, problems or "ok", flush=True)
    print(table(rows))
    if arguments.write is not None:
        arguments.write.write_text(plot(rows))
    return 1 if num_problems else 0


if __name__ == "__main__":
    sys.exit(main())
