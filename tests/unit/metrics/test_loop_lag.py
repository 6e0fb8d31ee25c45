"""How long the event loop kept others waiting: computing counts, sleeping elsewhere does not."""

from __future__ import annotations

import asyncio
import time

from naiad.metrics.custom import CustomMetrics
from naiad.metrics.loop_lag import LoopLag
from naiad.metrics.page import MetricsPage
from naiad.settings import Settings


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


async def test_notices_a_callback_that_computes() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    lag.start()
    await asyncio.sleep(0)
    compute(0.1)
    await asyncio.sleep(0.001)
    lag.stop()
    assert 0.05 < lag.max_busy_s < 0.2
    assert lag.max_lag_s >= lag.max_busy_s


async def test_notices_a_callback_at_the_very_end() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    lag.start()
    compute(0.1)
    lag.stop()
    assert lag.max_busy_s > 0.05


async def test_time_that_the_thread_did_not_compute_is_not_busy() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    lag.start()
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251 - as when the machine is busy with others
    await asyncio.sleep(0.001)
    lag.stop()
    assert lag.max_busy_s < 0.05
    assert lag.max_lag_s > 0.05


async def test_many_short_callbacks_are_no_stall() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    lag.start()
    for _ in range(100):
        compute(0.002)
        await asyncio.sleep(0)
    lag.stop()
    assert lag.max_busy_s < 0.05


async def test_the_page_shows_both() -> None:
    lag = LoopLag(asyncio.get_running_loop())
    page = MetricsPage(Settings(), list, CustomMetrics(), loop_lag=lag).render().decode()
    assert "naiad_event_loop_lag_seconds 0" in page
    assert "naiad_event_loop_busy_max_seconds 0" in page
