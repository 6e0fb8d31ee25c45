"""The models of an analysis: their configurations read from disk, what they are made of, and the
winners written back.

Rule: the user's repository is only read, unless --write-best-config was given; then the old file is
      kept beside the new one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from naiad.analyze.variant import config_text
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.perf.channels.control import Control
from naiad.repository.config.config_override import parse_override_dict
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.scan import CONFIG_FILE
from naiad.settings.option import OptionError

KEPT_FILE = "config.pbtxt.before-analyze"


async def read_configs(
    control: Control, model: str, bls_composing: list[str]
) -> dict[str, ModelConfig]:
    """As the server has completed them: the model first, then its composing models at all levels.
    Raises ControlError, OptionError."""
    found: dict[str, ModelConfig] = {}
    waiting = [model]
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        if not await control.is_model_ready(name):
            await control.load_model(name)
        try:
            found[name] = parse_override_dict(await control.model_config(name, ""))
        except InvalidConfigError as error:
            raise OptionError(f"model '{name}': {error}") from None
        waiting += [step.model_name for step in found[name].ensemble_scheduling.step]
        if name == model:
            waiting += bls_composing
    return found


def check_models(repository: Path, models: list[str]) -> None:
    """Raises OptionError, before anything is started."""
    if not repository.is_dir():
        raise OptionError(f"--model-repository {repository} is not a folder")
    known = sorted(path.name for path in repository.iterdir() if path.is_dir())
    for model in models:
        if model not in known:
            raise OptionError(
                f"{repository} has no model '{model}'; its models are: {', '.join(known)}"
            )


def written_config(directory: Path, completed: ModelConfig) -> ModelConfig:
    """As its author wrote it, so that a winner does not drag in every default; the completed one
    where there is no file."""
    path = directory / CONFIG_FILE
    if not path.is_file():
        return completed
    return parse_text(path.read_text(), ModelConfig, f"{directory.name}/{CONFIG_FILE}").message


def write_variant(folder: Path, source: Path, name: str, config: ModelConfig, comment: str) -> None:
    """`folder/name` with the variant's config.pbtxt, and links to the model's versions and other
    files."""
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
    """The winner becomes the model's configuration. Returns where the old one is."""
    path, kept = directory / CONFIG_FILE, directory / KEPT_FILE
    if path.exists() and not kept.exists():
        shutil.copy2(path, kept)
    path.write_text(config_text(config, comment))
    return kept
