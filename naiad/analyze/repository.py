"""Reads the configurations of the analyzed models and writes the best ones.

Rule: the user's repository is only read, unless --write-best-config is set. Then the old file is
      kept next to the new one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from naiad.analyze.variant import config_text
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.perf.channels.control import ServerControl
from naiad.repository.config.config_override import parse_override_dict
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.scan import CONFIG_FILE
from naiad.settings.option import OptionError

KEPT_FILE = "config.pbtxt.before-analyze"


async def read_configs(
    control: ServerControl, model: str, bls_composing: list[str]
) -> dict[str, ModelConfig]:
    """Returns the configurations as completed by the server: the model's first, then those of its
    composing models at all levels. Raises ControlError or OptionError."""
    configs: dict[str, ModelConfig] = {}
    waiting = [model]
    while waiting:
        name = waiting.pop(0)
        if name in configs:
            continue
        if not await control.is_model_ready(name):
            await control.load_model(name)
        try:
            configs[name] = parse_override_dict(await control.model_config(name, ""))
            # The server adds what a backend has chosen; no backend accepts that as a parameter.
            for fact in [key for key in configs[name].parameters if key.startswith("loaded_")]:
                del configs[name].parameters[fact]
        except InvalidConfigError as error:
            raise OptionError(f"model '{name}': {error}") from None
        waiting += [step.model_name for step in configs[name].ensemble_scheduling.step]
        if name == model:
            waiting += bls_composing
    return configs


def check_models(repository: Path, models: list[str]) -> None:
    """Raises OptionError if the repository or one of the models does not exist."""
    if not repository.is_dir():
        raise OptionError(f"--model-repository {repository} is not a directory")
    known = sorted(path.name for path in repository.iterdir() if path.is_dir())
    for model in models:
        if model not in known:
            raise OptionError(
                f"--profile-models: the repository {repository} has no model '{model}'; its models"
                f" are: {', '.join(known)}"
            )


def written_config(directory: Path, completed: ModelConfig) -> ModelConfig:
    """Returns the configuration of config.pbtxt, which does not contain every default.

    Returns `completed` if there is no file.
    """
    path = directory / CONFIG_FILE
    if not path.is_file():
        return completed
    return parse_text(path.read_text(), ModelConfig, f"{directory.name}/{CONFIG_FILE}").message


def write_variant(folder: Path, source: Path, name: str, config: ModelConfig, comment: str) -> None:
    """Writes the model `folder/name`: the variant's config.pbtxt, and links to the versions and
    other files of the source model."""
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    variant = ModelConfig()
    variant.CopyFrom(config)
    variant.name = name
    (target / CONFIG_FILE).write_text(config_text(variant, comment))
    for entry in source.iterdir():
        if entry.name not in (CONFIG_FILE, KEPT_FILE):
            (target / entry.name).symlink_to(entry.resolve(), target_is_directory=entry.is_dir())


def write_back(directory: Path, config: ModelConfig, comment: str) -> Path:
    """Replaces the model's config.pbtxt by the winner. Returns the path of the old file."""
    path, kept = directory / CONFIG_FILE, directory / KEPT_FILE
    if path.exists() and not kept.exists():
        shutil.copy2(path, kept)
    path.write_text(config_text(config, comment))
    return kept
