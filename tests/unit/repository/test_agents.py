"""The checksum agent: a model whose files do not match its config is not loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from naiad.errors import Code, NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.agents import run_agents

CONTENT = b"weights"
MD5 = hashlib.md5(CONTENT).hexdigest()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


async def check(folder: Path, parameters: dict[str, str], agent: str = "checksum") -> None:
    (folder / "1").mkdir()
    (folder / "1/model.bin").write_bytes(CONTENT)
    config = ModelConfig(name="m")
    config.model_repository_agents.agents.add(name=agent, parameters=parameters)
    await run_agents(config, folder)


async def test_files_with_the_right_checksum_are_accepted(tmp_path: Path) -> None:
    await check(tmp_path, {"MD5:1/model.bin": MD5.upper(), "SHA256:1/model.bin": SHA256})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"MD5:1/model.bin": "0" * 32},
            f"Mismatched MD5 hash for file 1/model.bin, expecting: {'0' * 32}, got: {MD5}",
        ),
        (
            {"MD5:1/other.bin": MD5},
            "checksum: failed to read 1/other.bin: No such file or directory",
        ),
        (
            {"MD5:../m/1/model.bin": MD5},
            "checksum: parameter 'MD5:../m/1/model.bin' is not MD5:<path of a file of the "
            "model> or SHA256:<path>",
        ),
        (
            {"CRC:1/model.bin": "0"},
            "checksum: parameter 'CRC:1/model.bin' is not MD5:<path of a file of the model> "
            "or SHA256:<path>",
        ),
        (
            {"MD5": MD5},
            "checksum: parameter 'MD5' is not MD5:<path of a file of the model> or SHA256:<path>",
        ),
    ],
)
async def test_files_that_do_not_match_are_refused(
    tmp_path: Path, parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(NaiadError) as caught:
        await check(tmp_path, parameters)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, message)


async def test_an_unknown_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        NaiadError,
        match="unable to find repository agent 'decrypt' of model 'm': this server has 'checksum'",
    ):
        await check(tmp_path, {}, agent="decrypt")
