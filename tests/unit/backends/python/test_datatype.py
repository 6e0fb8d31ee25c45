"""The type tables and byte-string functions of triton_python_backend_utils."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.backends.python import pb_utils


def test_tables() -> None:
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_BOOL"] is bool
    assert pb_utils.triton_string_to_numpy("TYPE_FP32") is np.float32
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert len(pb_utils.TRITON_STRING_TO_NUMPY) == 13
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


def test_numbers() -> None:
    for number in range(1, 14):
        assert pb_utils.numpy_to_triton_type(pb_utils.triton_to_numpy_type(number)) == number
    assert pb_utils.triton_to_numpy_type(14) is None
    assert pb_utils.numpy_to_triton_type(np.dtype("f4")) == 11
    assert pb_utils.numpy_to_triton_type(np.bytes_) == 13
    for unknown in (np.str_, np.complex64, "nonsense"):
        assert pb_utils.numpy_to_triton_type(unknown) is None


def test_byte_strings() -> None:
    encoded = pb_utils.serialize_byte_tensor(np.array([b"a", "b"], dtype=np.object_))
    assert encoded == b"\x01\0\0\0a\x01\0\0\0b"
    assert pb_utils.deserialize_bytes_tensor(encoded).tolist() == [b"a", b"b"]
    assert pb_utils.serialize_byte_tensor(np.array([], dtype=np.object_)) == b""
    assert pb_utils.serialize_byte_tensor(np.zeros(2)) is None


def test_config_lookups() -> None:
    config = {
        "input": [{"name": "X"}],
        "output": [{"name": "Y"}],
        "model_transaction_policy": {"decoupled": True},
    }
    assert pb_utils.get_input_config_by_name(config, "X") == {"name": "X"}
    assert pb_utils.get_output_config_by_name(config, "Y") == {"name": "Y"}
    assert (
        pb_utils.get_input_config_by_name(config, "Y")
        is pb_utils.get_output_config_by_name({}, "X")
        is None
    )
    assert pb_utils.using_decoupled_model_transaction_policy(config)
    assert not pb_utils.using_decoupled_model_transaction_policy({})
