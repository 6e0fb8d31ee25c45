"""Settings that switch a part of the server off."""

from __future__ import annotations

import pytest

from naiad.metrics.custom import CustomMetrics
from naiad.settings import Settings
from naiad.wiring import model_services
from tests.fakes import FakeClock


@pytest.mark.parametrize("is_on", [True, False])
def test_direct_calls_and_the_ensemble_relay_can_be_switched_off(is_on: bool) -> None:
    direct = model_services(Settings(direct_calls=is_on), FakeClock(), CustomMetrics())
    assert (direct.lease_numbers is not None) is is_on
    assert direct.find is not None
    relay = model_services(Settings(ensemble_relay=is_on), FakeClock(), CustomMetrics())
    assert (relay.find is not None) is is_on
    assert relay.lease_numbers is not None


def test_the_busy_poll_can_be_switched_off() -> None:
    assert model_services(Settings(busy_poll_us=0), FakeClock(), CustomMetrics()).busy_poll is None
