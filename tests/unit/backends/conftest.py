from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from naiad.backends.python import instance as pb_instance
from naiad.backends.python.instance import Instance
from tests.unit.backends.fake_runtime import FakeRuntime


@pytest.fixture(autouse=True)
def restored_imports() -> Iterator[None]:
    """Removes imported models: a worker imports one, but this process imports many."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == "1" or name.startswith("1."):
            del sys.modules[name]
    pb_instance.install(Instance("", ""))


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def instance(runtime: FakeRuntime) -> Instance:
    """A loaded instance, for tests of the API without a model."""
    instance = Instance("m_0", "/models/m/1", runtime, output_names=frozenset({"Y", "TEXT"}))
    instance.is_serving = True
    pb_instance.install(instance)
    return instance
