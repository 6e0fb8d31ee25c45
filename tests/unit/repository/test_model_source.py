"""The order in which the faults of a model's config are reported, which is Triton's."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.repository.config.config import ConfigOptions
from naiad.repository.model_source import ModelSources, Override
from naiad.repository.store import LocalStore

IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
BAD_SIZE = "'max_batch_size' must be non-negative value for "
WRONG_NAME = "unexpected directory name 'm' for model 'other', directory name must equal model name"
NO_VERSION = "at least one version must be available under the version policy of model 'm'"


def fault(tmp_path: Path, text: str, *, has_version: bool) -> str:
    (tmp_path / "m" / ("1" if has_version else "")).mkdir(parents=True, exist_ok=True)
    (tmp_path / "m" / "config.pbtxt").write_text(text)
    store = LocalStore(tmp_path)
    with pytest.raises(NaiadError) as caught:
        ModelSources([store], ConfigOptions()).read("m", store, Override())
    return caught.value.message


@pytest.mark.parametrize(("backend", "io"), [("identity", IO), ("python", IO), ("python", "")])
def test_contents_are_judged_before_the_name_and_the_versions(
    tmp_path: Path, backend: str, io: str
) -> None:
    """A Python model may still complete inputs and outputs that are missing."""
    config = f'backend: "{backend}" {io}'
    wrong = f'{config} name: "other" max_batch_size: -1'
    assert fault(tmp_path, wrong, has_version=False).startswith(BAD_SIZE + "other")
    assert fault(tmp_path, f"{config} max_batch_size: -1", has_version=False).startswith(BAD_SIZE)
    assert fault(tmp_path, f'{config} name: "other"', has_version=False).startswith(WRONG_NAME)
    assert fault(tmp_path, config, has_version=False) == NO_VERSION
    assert fault(tmp_path, f'{config} name: "other"', has_version=True).startswith(WRONG_NAME)
