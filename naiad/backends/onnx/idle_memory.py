"""Gives back what the largest request has left in onnxruntime's arena, once the instance is idle.

onnxruntime keeps the memory of the largest run, and frees it only at the end of a run that asks for
it; to ask each time costs half of a run's time again on models with large activations. So all
sessions of the process share one arena, and when nothing has run for a while a model of four
numbers does, which asks.
Rule: whoever sets a memory option of onnxruntime gets onnxruntime's own behaviour.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import onnxruntime

from naiad.backends.served_config import ServedConfig

IDLE_S = 5.0
SHRINK = "memory.enable_memory_arena_shrinkage"
_SHARE = "session.use_env_allocators"
_OWN = ("enable_mem_arena", SHRINK, _SHARE)
_SMALL_MODEL = (
    b'\x08\x08:L\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x06doubleZ\x18\n\x01x\x12\x13\n\x11\x08\x01\x12\r\n'
    b"\x07\x12\x05batch\n\x02\x08\x04b\x18\n\x01y\x12\x13\n\x11\x08\x01\x12\r\n\x07\x12\x05batch\n\x02\x08\x04B\x02\x10\r"
)
"""y = x + x, FP32, shape [batch, 4]."""
_is_registered = False


def shares_arena(config: ServedConfig, providers: list[Any]) -> bool:
    is_default = not any(config.has(name) for name in _OWN)
    return is_default and list(providers) == ["CPUExecutionProvider"]


def share_arena(options: onnxruntime.SessionOptions) -> None:
    global _is_registered
    if not _is_registered:
        kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
        info = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use)
        onnxruntime.create_and_register_allocator(info, onnxruntime.OrtArenaCfg(0, -1, -1, -1))
        _is_registered = True
    options.add_session_config_entry(_SHARE, "1")


class IdleMemory:
    def __init__(self, idle_s: float = IDLE_S) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        share_arena(options)
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(_SMALL_MODEL, options, providers=providers)
        self._run_options = onnxruntime.RunOptions()
        self._run_options.add_run_config_entry(SHRINK, "cpu:0")
        self._idle_s = idle_s
        self._used_s = 0.0
        self._is_used = threading.Event()
        self._is_ended = False
        self.num_given_back = 0
        threading.Thread(target=self._run, name="onnx-idle", daemon=True).start()

    def use(self) -> None:
        """After each execution."""
        self._used_s = time.monotonic()
        if not self._is_used.is_set():
            self._is_used.set()

    def end(self) -> None:
        self._is_ended = True
        self._is_used.set()

    def _run(self) -> None:
        while self._is_used.wait() and not self._is_ended:
            left_s = self._used_s + self._idle_s - time.monotonic()
            if left_s > 0:
                time.sleep(left_s)
                continue
            self._is_used.clear()
            self._session.run(None, {"x": np.zeros((1, 4), np.float32)}, self._run_options)
            self.num_given_back += 1
