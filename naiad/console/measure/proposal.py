"""The configuration that an analysis proposes, as a change of the model's config.pbtxt.

In:  the model's directory, and the config that `naiad analyze` wrote in a copy of the repository.
Out: a diff.
Rule: nothing is written to the repository here. A proposal is applied as any other edit is, by a
      deployment.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.repository.deploy.config_text import unified_diff
from naiad.repository.deploy.deployer import text_hash
from naiad.repository.deploy.proposal import read_text
from naiad.repository.scan import CONFIG_FILE


class Proposal(msgspec.Struct, frozen=True):
    file: str
    """The path within the repository: MODEL/config.pbtxt."""
    tag: str
    """The hash of the file as it was when the diff was made."""
    diff: str
    """Unified; empty if the analysis proposes nothing."""
    is_applied: bool
    """The file has the proposed text."""


def copy_repository(repository: Path, target: Path) -> None:
    """Makes a repository that an analysis may change: configs are copied, other files are links."""
    for source in sorted(repository.iterdir()):
        if not source.is_dir() or source.name.startswith("."):
            continue
        model = target / source.name
        model.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name == CONFIG_FILE:
                (model / CONFIG_FILE).write_bytes(entry.read_bytes())
            else:
                (model / entry.name).symlink_to(entry.resolve(), entry.is_dir())


def propose(directory: Path, copy: Path) -> Proposal:
    old, new = read_config_text(directory), read_config_text(copy)
    name = f"{directory.name}/{CONFIG_FILE}"
    return Proposal(name, text_hash(old), unified_diff(old, new, name), is_applied=old == new)


def read_config_text(directory: Path) -> str:
    """Returns "" for a file that does not exist."""
    return read_text(directory / CONFIG_FILE) or ""
