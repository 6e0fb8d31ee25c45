"""Generates input values: zeros, or random values.

perf_analyzer fills tensors with random bits, which gives NaN, 1e31 or two billion. Here floats are
in [-1, 1), integers are from 0 to 127, and strings are printable. The generator is seeded, so that
two runs send the same values.
"""

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.datatype import DATATYPES
from naiad.perf.data.dataset import Dataset, Step, TensorValue, fixed_shape
from naiad.perf.data.model_facts import ModelFacts, TensorFacts
from naiad.settings.option import OptionError

DEFAULT_STRING_LENGTH = 128
_LETTERS = np.array(list(string.ascii_letters + string.digits))


def generate(
    facts: ModelFacts,
    shapes: dict[str, tuple[int, ...]],
    *,
    is_zero: bool = False,
    string_data: str = "",
    string_length: int = DEFAULT_STRING_LENGTH,
    num_steps: int = 1,
    seed: int = 0,
) -> Dataset:
    """Generates a dataset. Like perf_analyzer, omits optional inputs. Raises OptionError."""
    random = np.random.default_rng(seed)
    steps: list[Step] = []
    for _ in range(num_steps):
        step: Step = {}
        for tensor in facts.inputs:
            if tensor.is_optional and tensor.name not in shapes:
                continue
            shape = fixed_shape(tensor, shapes)
            if tensor.is_shape_tensor:
                raise OptionError(
                    f"input '{tensor.name}' is a shape tensor, so its values must come from an"
                    " --input-data file"
                )
            step[tensor.name] = TensorValue(
                shape, _raw(tensor, shape, random, is_zero, string_data, string_length)
            )
        steps.append(step)
    return Dataset([steps])


def _raw(
    tensor: TensorFacts,
    shape: tuple[int, ...],
    random: np.random.Generator,
    is_zero: bool,
    string_data: str,
    string_length: int,
) -> bytes:
    count = math.prod(shape)
    if tensor.datatype == "BYTES":
        if string_data:
            return encode_byte_strings([string_data] * count)
        return encode_byte_strings(
            [
                "" if is_zero else "".join(random.choice(_LETTERS, string_length))
                for _ in range(count)
            ]
        )
    if tensor.datatype not in DATATYPES:
        raise OptionError(f"input '{tensor.name}' has the unknown datatype '{tensor.datatype}'")
    datatype = DATATYPES[tensor.datatype]
    if is_zero:
        return bytes(count * datatype.byte_size)
    if tensor.datatype == "BF16":
        # BF16 is the upper half of a float32.
        return random.uniform(-1, 1, count).astype(np.float32).view(np.uint16)[1::2].tobytes()
    assert datatype.numpy is not None
    return _random_array(random, count, datatype.numpy).tobytes()


def _random_array(
    random: np.random.Generator, count: int, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    if dtype.kind == "f":
        return random.uniform(-1, 1, count).astype(dtype)
    return random.integers(0, 2 if dtype.kind == "b" else 128, count).astype(dtype)
