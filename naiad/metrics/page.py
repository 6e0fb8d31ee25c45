"""The page at /metrics: models, host, the server itself, and the metrics that models create.

In:  callables that return the state at scrape time. Out: bytes in the text format of Prometheus.
Rule: there is one family per name. A model's metric with the name of a server metric joins its
      family.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from naiad import __version__, log
from naiad.core.memory_budget import MemoryBudget
from naiad.metrics.cache_metrics import CacheReading, cache_blocks
from naiad.metrics.custom import CustomMetrics
from naiad.metrics.exposition import COUNTER, GAUGE, Block, label_text, page, with_labels
from naiad.metrics.host import HostReading, HostSampler, host_blocks
from naiad.metrics.key_metrics import KeyReading, key_blocks
from naiad.metrics.loop_lag import LoopTimes
from naiad.metrics.model_metrics import ModelBlocks, ModelSeries
from naiad.settings import Settings, latency_metrics

CONTENT_TYPE = "text/plain; charset=utf-8"


class MetricsPage:
    def __init__(
        self,
        settings: Settings,
        models: Callable[[], Iterable[ModelSeries]],
        custom: CustomMetrics,
        connections: Callable[[], Mapping[str, int]] = dict,
        cache: Callable[[], CacheReading | None] = lambda: None,
        faults: Callable[[], Mapping[str, Mapping[str, int]]] = dict,
        keys: Callable[[], KeyReading | None] = lambda: None,
        budget: MemoryBudget | None = None,
        loop_lag: LoopTimes | None = None,
        num_lines_lost: Callable[[], int] = log.num_dropped,
    ) -> None:
        """`connections` returns open connections by protocol, such as {"http": 3, "grpc": 1}.

        `cache` returns None if the server has no response cache in its own memory, `keys` if nobody
        needs an API key. `faults` returns by protocol how often clients passed a deadline or broke
        a rule, by cause.
        """
        self._models = models
        self._custom = custom
        self._connections = connections
        self._cache = cache
        self._faults = faults
        self._keys = keys
        self._budget = budget or MemoryBudget()
        self._loop_lag = loop_lag
        self._num_lines_lost = num_lines_lost
        self._latency = latency_metrics(settings.metrics_config)
        self._place = {"node": settings.node_name, "replica": settings.replica_name}
        self._pinned_bytes = settings.pinned_memory_pool_byte_size
        self.sampler = HostSampler(
            has_cpu=settings.allow_cpu_metrics,
            has_gpu=settings.allow_gpu_metrics,
            interval_s=settings.metrics_interval_ms / 1000,
        )
        custom.reserve({block.name: block.kind for block in self._own_blocks([], HostReading())})

    def start(self) -> None:
        self.sampler.start()

    def stop(self) -> None:
        self.sampler.stop()

    def render(self) -> bytes:
        blocks = {
            block.name: block for block in self._own_blocks(self._models(), self.sampler.latest)
        }
        for block in self._custom.blocks():
            blocks.setdefault(block.name, block)
            if blocks[block.name] is not block:
                blocks[block.name].lines += block.lines
        return with_labels(page(blocks.values()), self._place)

    def _own_blocks(self, series: Iterable[ModelSeries], reading: HostReading) -> list[Block]:
        models = ModelBlocks(series, self._latency, time.monotonic_ns())
        return [
            *models.counters(),
            *models.gauges(),
            *self._pinned_memory(),
            *cache_blocks(self._cache()),
            *key_blocks(self._keys()),
            *host_blocks(reading),
            *self._server(),
            *self._memory(),
            *models.histograms(),
            *models.summaries(),
        ]

    def _pinned_memory(self) -> list[Block]:
        """Shows the numbers of a Triton without a GPU, although Naiad has no such pool."""
        total = Block(
            "nv_pinned_memory_pool_total_bytes",
            GAUGE,
            "Pinned memory pool total memory size, in bytes",
        )
        total.add("", self._pinned_bytes)
        used = Block(
            "nv_pinned_memory_pool_used_bytes",
            GAUGE,
            "Pinned memory pool used memory size, in bytes",
        )
        used.add("", 0)
        return [total, used]

    def _memory(self) -> list[Block]:
        budget = self._budget
        limit = Block(
            "naiad_request_memory_limit_bytes",
            GAUGE,
            "Maximum number of bytes held for requests and responses",
        )
        limit.add("", budget.total_limit_bytes)
        used = Block(
            "naiad_request_memory_used_bytes",
            GAUGE,
            "Number of bytes held for requests and responses",
        )
        used.add("", budget.total_used_bytes)
        refused = Block(
            "naiad_request_memory_refused_total",
            COUNTER,
            "Number of requests and responses refused because the server held too many bytes",
        )
        refused.add("", budget.total_num_refused)
        return [limit, used, refused]

    def _server(self) -> list[Block]:
        connections = Block("naiad_connections", GAUGE, "Number of open client connections")
        for protocol, count in self._connections().items():
            connections.add(label_text({"protocol": protocol}), count)
        faults = Block(
            "naiad_client_faults_total",
            COUNTER,
            "Number of connections and calls that were ended because of the client, by cause",
        )
        for protocol, causes in self._faults().items():
            for cause, count in sorted(causes.items()):
                faults.add(label_text({"protocol": protocol, "cause": cause}), count)
        dropped = Block(
            "naiad_log_messages_dropped_total", COUNTER, "Number of log messages that were lost"
        )
        dropped.add("", self._num_lines_lost())
        info = Block("naiad_info", GAUGE, "Always 1; the version of the server is a label")
        info.add(label_text({"version": __version__}), 1)
        return [connections, faults, *self._event_loop(), dropped, info]

    def _event_loop(self) -> list[Block]:
        lag = Block(
            "naiad_event_loop_lag_seconds",
            GAUGE,
            "Longest time within the last one or two minutes for which the event loop was late",
        )
        busy = Block(
            "naiad_event_loop_busy_max_seconds",
            GAUGE,
            "Longest time since the start for which the event loop computed without a pause",
        )
        if self._loop_lag is not None:
            lag.add("", self._loop_lag.max_lag_s)
            busy.add("", self._loop_lag.max_busy_s)
        return [lag, busy]
