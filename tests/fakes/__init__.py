"""The doubles of all tests: what they stand for is in the name of the file."""

from tests.fakes.core import FakeCore, Held
from tests.fakes.model import FakeModel
from tests.fakes.scheduling import FakeClock, FakeInstance, FakeTimer, fake_request
from tests.fakes.transport import FakeTransport

__all__ = [
    "FakeClock",
    "FakeCore",
    "FakeInstance",
    "FakeModel",
    "FakeTimer",
    "FakeTransport",
    "Held",
    "fake_request",
]
