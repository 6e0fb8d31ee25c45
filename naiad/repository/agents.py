"""Repository agents: checks of a model's files that a config asks for, made before any code of the
model runs.

There is one agent, Triton's `checksum`: each of its parameters `MD5:<path>` (or `SHA256:<path>`) is
the expected hash of a file of the model. A config that names any other agent is not loaded, because
its checks would not be made.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.files.safe_path import path_inside
from naiad.pb.model_config_pb2 import ModelConfig, ModelRepositoryAgents

ALGORITHMS = ("MD5", "SHA256")


async def run_agents(config: ModelConfig, model_dir: Path) -> None:
    """Raises NaiadError if the model must not be loaded."""
    if config.model_repository_agents.agents:
        await asyncio.to_thread(check_agents, config, model_dir)


def check_agents(config: ModelConfig, model_dir: Path) -> None:
    """Like `run_agents`, and blocks."""
    for agent in config.model_repository_agents.agents:
        if agent.name != "checksum":
            raise invalid_arg(
                f"unable to find repository agent '{agent.name}' of model '{config.name}': "
                "this server has 'checksum'"
            )
        _check(agent, model_dir)


def _check(agent: ModelRepositoryAgents.Agent, model_dir: Path) -> None:
    for name, expected in sorted(agent.parameters.items()):
        algorithm, colon, file_name = name.partition(":")
        path = path_inside(model_dir, file_name)
        if algorithm not in ALGORITHMS or not colon or path is None or not file_name:
            raise invalid_arg(
                f"checksum: parameter '{name}' is not MD5:<path of a file of the model> "
                "or SHA256:<path>"
            )
        try:
            with path.open("rb") as file:
                got = hashlib.file_digest(file, algorithm.lower()).hexdigest()
        except OSError as error:
            raise invalid_arg(f"checksum: failed to read {file_name}: {error.strerror}") from error
        if got != expected.strip().lower():
            raise invalid_arg(
                f"Mismatched {algorithm} hash for file {file_name}, expecting: {expected}, "
                f"got: {got}"
            )
