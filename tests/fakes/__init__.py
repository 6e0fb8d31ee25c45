"""The doubles of all tests: what they stand for is in the name of the file."""

from tests.fakes.core import FakeCore, Held
from tests.fakes.model import FakeModel
from tests.fakes.scheduling import (
    FakeBorrower,
    FakeClock,
    FakeInstance,
    FakeObserver,
    FakeServices,
    FakeTimer,
    fake_job,
)
from tests.fakes.transport import FakeTransport

__all__ = [
    "FakeBorrower",
    "FakeClock",
    "FakeCore",
    "FakeInstance",
    "FakeModel",
    "FakeObserver",
    "FakeServices",
    "FakeTimer",
    "FakeTransport",
    "Held",
    "fake_job",
]
