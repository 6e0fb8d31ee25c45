"""The module that models import as `triton_python_backend_utils`."""

from __future__ import annotations

import pytest

from naiad.backends.python import pb_utils


def test_a_typo_gets_the_nearest_name() -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(pb_utils, "InferenceRespose")  # noqa: B009
    assert str(raised.value) == (
        "module 'triton_python_backend_utils' has no attribute 'InferenceRespose'. "
        "Did you mean: 'InferenceResponse'?"
    )


def test_a_name_that_nothing_resembles() -> None:
    assert not hasattr(pb_utils, "xyz")
    with pytest.raises(AttributeError, match=r"has no attribute 'xyz'$"):
        getattr(pb_utils, "xyz")  # noqa: B009
