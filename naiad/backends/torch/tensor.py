"""Converts numpy arrays to torch tensors and back, without a copy on the CPU.

BF16, which numpy lacks, is uint16 bit patterns on the side of numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from naiad.backends.tensor_array import Array, array_dtype
from naiad.errors import internal
from naiad.shm.arena import INLINE_MAX_BYTES

Allocate: TypeAlias = Callable[[int], memoryview]

DATATYPES: dict[Any, str] = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.bfloat16: "BF16",
}
DTYPES: dict[str, Any] = {name: dtype for dtype, name in DATATYPES.items()}


def to_torch(array: Array, datatype: str, device: Any) -> Any:
    if not array.flags.writeable:
        # torch would warn, and a model that writes to its input would change read-only memory.
        array = array.copy()
    tensor = torch.from_numpy(array)
    if datatype == "BF16":
        tensor = tensor.view(torch.bfloat16)
    return tensor if device is None or device.type == "cpu" else tensor.to(device)


def from_torch(name: str, tensor: Any, allocate: Allocate) -> Array:
    """Returns the tensor's own memory on the CPU, or a copy of GPU memory.

    A large copy goes to memory shared with the server. Raises NaiadError.
    """
    if tensor.dtype not in DATATYPES:
        raise internal(f"output '{name}' is of type {tensor.dtype}, which has no Triton datatype")
    if tensor.layout != torch.strided:
        raise internal(f"output '{name}' is sparse ({tensor.layout}): return a dense tensor")
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    if tensor.device.type == "cpu":
        array: Array = tensor.numpy()
        return array
    if tensor.nbytes <= INLINE_MAX_BYTES:
        small: Array = tensor.cpu().numpy()
        return small
    placed: Array = np.frombuffer(
        allocate(tensor.nbytes), array_dtype(DATATYPES[tensor.dtype])
    ).reshape(tuple(tensor.shape))
    torch.from_numpy(placed).copy_(tensor)
    return placed


def to_strings(array: Array) -> list[str]:
    """Returns the elements for TorchScript's List[str]. Raises UnicodeDecodeError."""
    return [element.decode() for element in array.reshape(-1).tolist()]


def from_strings(strings: list[str]) -> Array:
    array = np.empty(len(strings), np.object_)
    array[:] = [text.encode() for text in strings]
    return array
