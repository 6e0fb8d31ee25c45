"""Outputs of models in GPU memory: received by DLPack, copied to the host by the driver alone, and
freed with the last view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch")

import torch

from naiad.backends.python.error import TritonModelException
from naiad.backends.python.tensor import Tensor, encode_tensor, received_tensor
from naiad.ipc.work import WorkTensor

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("as_capsule", [True, False])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_output_of_torch(dtype: torch.dtype, as_capsule: bool, device: str) -> None:
    source = torch.randint(0, 2, (3, 1000), device=device).to(dtype)
    tensor = Tensor.from_dlpack("Y", torch.utils.dlpack.to_dlpack(source) if as_capsule else source)
    assert (tensor.is_cpu(), tensor.shape()) == (device == "cpu", [3, 1000])
    assert bytes(encode_tensor(tensor).data) == bits(source)
    again = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
    assert again.device == source.device
    assert again.dtype == dtype
    assert again.data_ptr() == source.data_ptr()
    assert torch.equal(again, source)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_rejects_strided_tensors(device: str) -> None:
    with pytest.raises(TritonModelException, match="DLPack tensor is not contiguous"):
        Tensor.from_dlpack("Y", torch.zeros(2, 3, device=device).T)
    assert Tensor.from_dlpack("Y", torch.zeros(2, 3, device=device)[1:]).shape() == [1, 3]


def test_input_to_torch() -> None:
    numbers = received_tensor(
        WorkTensor("X", "FP32", [2], bytearray(np.array([1, 2], np.float32).tobytes()))
    )
    shared = torch.from_dlpack(numbers)
    shared[0] = 5
    assert numbers.as_numpy().tolist() == [5, 2]
    halves = received_tensor(
        WorkTensor("X", "BF16", [2], bytearray(bits(torch.tensor([1.5, -2], dtype=torch.bfloat16))))
    )
    assert torch.from_dlpack(halves).tolist() == [1.5, -2]


@needs_gpu
def test_waits_for_pending_work_of_other_streams() -> None:
    stream = torch.cuda.Stream()
    result = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        result += 7
    encoded = encode_tensor(Tensor.from_dlpack("Y", torch.utils.dlpack.to_dlpack(result)))
    assert set(np.frombuffer(encoded.data, np.float32).tolist()) == {7.0}


@needs_gpu
def test_device_memory_is_freed_with_the_tensor() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        tensor: Any = Tensor.from_dlpack("Y", torch.zeros(1 << 22, device="cuda"))
        assert torch.cuda.memory_allocated() > before
        exported = tensor.to_dlpack()
        encode_tensor(tensor)
        del tensor, exported
        assert torch.cuda.memory_allocated() == before


@needs_gpu
def test_output_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    source = cupy.arange(1000, dtype=cupy.float32)
    tensor = Tensor.from_dlpack("Y", source)
    assert not tensor.is_cpu()
    assert bytes(encode_tensor(tensor).data) == source.get().tobytes()


@needs_gpu
def test_output_of_jax() -> None:
    jax = pytest.importorskip("jax")
    source = jax.numpy.arange(1000, dtype=jax.numpy.bfloat16)
    tensor = Tensor.from_dlpack("Y", source)
    assert not tensor.is_cpu()
    assert bytes(encode_tensor(tensor).data) == np.asarray(source).tobytes()
