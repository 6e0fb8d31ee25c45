"""What a source consists of: its files, and the config that its form begins with.

In:  the source of a Spec. Out: SourceFiles, or what a checkpoint tells.
Rule: everything here blocks. Checkpoints on the server and on the hub stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from naiad.backends.llm.checkpoint import PULLED, find_local
from naiad.backends.llm.other_kind import refuse_other_kind
from naiad.backends.torch.archive import FileKind, file_kind
from naiad.errors import NaiadError, invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.deploy.catalogue import STARTERS
from naiad.repository.deploy.draft import ENVIRONMENT_FOLDER, Drafts
from naiad.repository.deploy.layout import plan_layout
from naiad.repository.deploy.llm_config import checkpoint_name, llm_config
from naiad.repository.deploy.preview import Found
from naiad.repository.deploy.proposal import read_text
from naiad.repository.deploy.spec import Source, Spec
from naiad.repository.deploy.starter import starter_files
from naiad.repository.deploy.view import view_config
from naiad.repository.scan import CONFIG_FILE


class SourceFiles(msgspec.Struct, frozen=True):
    files: dict[str, Path]
    """Target in the model's folder -> file to put there."""
    contents: dict[str, str | bytes]
    """Target -> what to write there."""
    config: str
    """The text of the config that the form begins with; may be empty."""


def read_source(spec: Spec, drafts: Callable[[str], Drafts]) -> SourceFiles:
    """`drafts` finds the drafts that an id is among. Raises NaiadError."""
    source = spec.source
    match source.kind:
        case "files":
            sent = model_files(drafts(source.value).complete_files(source.value))
            layout = plan_layout(sent)
            files = {layout.target(path, spec.version): file for path, file in sent.items()}
            start = read_text(files[CONFIG_FILE]) if CONFIG_FILE in files else None
            if start is None:
                start = llm_config(".") if layout.is_checkpoint else ""
            return SourceFiles(files, {}, start)
        case "checkpoint":
            path = Path(source.value)
            if not path.is_absolute() or not path.exists():
                raise invalid_arg(
                    f"checkpoint: '{source.value}' is not a path that exists on the server"
                )
            return SourceFiles({}, {}, llm_config(str(path.resolve())))
        case "hub":
            return SourceFiles({}, {}, llm_config(_hub_id(source.value)))
        case "catalogue":
            if source.value not in STARTERS:
                return SourceFiles({}, {}, llm_config(_catalogue_name(source.value)))
            starter = starter_files(STARTERS[source.value])
            contents = {_versioned(t, spec.version): text for t, text in starter.items()}
            return SourceFiles({}, contents, str(starter.get(CONFIG_FILE, "")))
    return SourceFiles({}, {}, "")


def suggest_name(text: str) -> str:
    """A name that a new model may have, as near to the text as possible; may be empty."""
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    while "--" in name:
        name = name.replace("--", "-")
    name = name.strip("-")[:63].strip("-")
    return name if len(name) >= 2 else ""


def inspect_checkpoint(source: Source) -> Found:
    value = source.value
    if source.kind == "hub":
        value = _hub_id(value)
    elif source.kind == "catalogue":
        value = _catalogue_name(value)
    elif source.kind == "checkpoint":
        path = Path(value)
        if not path.is_absolute():
            raise invalid_arg(f"checkpoint: '{value}' is not an absolute path on the server")
        find_local(value, [Path("/")])
        if path.is_dir() and not _is_checkpoint(path):
            raise invalid_arg(
                f"checkpoint: '{value}' has no config.json and no .gguf file, so it is not a "
                "checkpoint"
            )
        refuse_other_kind(path)
        value = str(path.resolve())
    view = view_config(parse_text(llm_config(value), ModelConfig, "").message, "llm")
    note = "" if source.kind != "hub" else "It is downloaded when it is loaded."
    return Found(backend="llm", name=suggest_name(checkpoint_name(value)), config=view, note=note)


def _catalogue_name(name: str) -> str:
    if name not in PULLED:
        raise invalid_arg(f"source: the catalogue has no '{name}'")
    return name


def _is_checkpoint(path: Path) -> bool:
    names = ("config.json", "openvino_model.xml")
    return any((path / name).is_file() for name in names) or any(path.glob("*.gguf"))


def is_torchscript(folder: Path) -> bool:
    """TorchScript does not record shapes, so there is no need to open it."""
    try:
        file = folder / "1" / "model.pt"
        return file_kind(str(file), file.name) is FileKind.TORCHSCRIPT
    except NaiadError:
        return False


def _hub_id(text: str) -> str:
    try:
        is_id = find_local(text, []) is None
    except NaiadError:
        is_id = False
    if not is_id:
        raise invalid_arg(f"hub: '{text}' is not the id of a hub repository, such as org/model")
    return text


def model_files(files: dict[str, Path]) -> dict[str, Path]:
    """Without the archives of Python environments."""
    return {path: file for path, file in files.items() if not path.startswith(ENVIRONMENT_FOLDER)}


def _versioned(target: str, version: int) -> str:
    return f"{version}/{target[2:]}" if target.startswith("1/") else target
