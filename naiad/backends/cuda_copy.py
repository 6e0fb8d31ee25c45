"""Copies model outputs from GPU memory to host memory, through the CUDA driver alone.

The driver is loaded on first use. It is installed because the model's own framework uses it; no
other CUDA library is needed. The copy waits for the work of all streams of the device.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np


class CudaError(Exception):
    pass


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError("tensor is stored in GPU, but there is no CUDA driver") from error
    _check(driver, "cuInit", driver.cuInit(0))
    return driver


def _check(driver: ctypes.CDLL, call: str, status: int) -> None:
    if status == 0:
        return
    text = ctypes.c_char_p()
    driver.cuGetErrorString(status, ctypes.byref(text))
    raise CudaError(f"{call} failed: {(text.value or b'error ' + str(status).encode()).decode()}")


def copy_to_host(array: np.ndarray[Any, Any], device_id: int) -> np.ndarray[Any, Any]:
    """Copies the device memory that `array` describes to an ordinary array. Raises CudaError."""
    driver = _driver()
    host = np.empty(array.shape, array.dtype)
    if host.nbytes == 0:
        return host
    device = ctypes.c_int()
    _check(driver, "cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), device_id))
    context = ctypes.c_void_p()
    # Frameworks share the primary context. Retaining it does not create a second context.
    _check(
        driver,
        "cuDevicePrimaryCtxRetain",
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    )
    try:
        _check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent_v2(context))
        try:
            _check(driver, "cuCtxSynchronize", driver.cuCtxSynchronize())
            source = ctypes.c_uint64(array.__array_interface__["data"][0])
            target = ctypes.c_void_p(host.ctypes.data)
            _check(
                driver,
                "cuMemcpyDtoH",
                driver.cuMemcpyDtoH_v2(target, source, ctypes.c_size_t(host.nbytes)),
            )
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return host
