"""An instance that was used and is idle gives the arena's memory back."""

from __future__ import annotations

import pytest

from naiad.backends.onnx.idle_memory import IdleMemory, shares_arena
from naiad.backends.served_config import Parameter, ServedConfig
from tests.server.gates import eventually

CPU = ["CPUExecutionProvider"]


def test_idle_memory_is_given_back_once_after_each_use() -> None:
    memory = IdleMemory(idle_s=0.01)
    assert memory.num_given_back == 0
    memory.use()
    eventually(lambda: memory.num_given_back == 1, "the memory is given back")
    memory.use()
    eventually(lambda: memory.num_given_back == 2, "the memory is given back again")
    memory.end()


@pytest.mark.parametrize(
    "name",
    ["enable_mem_arena", "memory.enable_memory_arena_shrinkage", "session.use_env_allocators"],
)
def test_memory_options_of_the_user_are_left_alone(name: str) -> None:
    assert shares_arena(ServedConfig(name="m"), CPU)
    assert not shares_arena(ServedConfig(name="m", parameters={name: Parameter("1")}), CPU)
    assert not shares_arena(ServedConfig(name="m"), ["CUDAExecutionProvider", *CPU])
