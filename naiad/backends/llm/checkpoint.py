"""Finds the checkpoint that a config names and returns its path on this machine.

A config names a folder, a .gguf file, a name that `naiad pull` knows (its file is in the user's
cache), or an id on the Hugging Face hub. The hub's client downloads an id and follows HF_HOME,
HF_TOKEN (or PRIVATE_REPO_TOKEN), HF_ENDPOINT and HF_HUB_OFFLINE.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

from naiad.core.install_advice import install_command
from naiad.errors import NaiadError, invalid_arg, not_found, unavailable

PULLED = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf"}
"""Name for `naiad pull` -> file in the cache."""
_CACHE_ERRORS = (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_FILES = [
    "*.safetensors",
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "*.txt",
    "*.gguf",
    "openvino_*",
]


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """$NAIAD_CACHE, or `naiad` in the user's cache directory."""
    path = environ.get("NAIAD_CACHE")
    if path:
        return Path(path)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "naiad"


def find_checkpoint(text: str, bases: list[Path]) -> Path:
    """Relative paths are looked up in each of `bases`, in order. Raises NaiadError."""
    return find_local(text, bases) or _one_file(download(text))


def find_local(text: str, bases: list[Path]) -> Path | None:
    """Returns None for the id of a hub repository. Raises NaiadError."""
    for base in bases:
        path = base / text  # an absolute path stays as it is
        if path.exists():
            return _one_file(path)
    if text in PULLED:
        path = cache_dir() / PULLED[text]
        if not path.exists():
            raise not_found(
                f"checkpoint '{text}' has not been downloaded yet: run `naiad pull {text}`"
            )
        return path
    if _HUB_ID.fullmatch(text) and not text.endswith(".gguf"):
        return None
    raise not_found(
        f"no checkpoint '{text}': expected a folder, a .gguf file, a name for `naiad pull` "
        f"or the id of a hub repository"
    )


def _one_file(path: Path) -> Path:
    """Returns the GGUF file of a folder that has one and has no config.json."""
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        if files:
            raise invalid_arg(
                f"checkpoint '{path.name}' holds {len(files)} GGUF files, expected one; "
                f"name the file"
            )
    return path


def download(hub_id: str) -> Path:
    """Resumes an interrupted download and shows progress on a terminal. Raises NaiadError."""
    try:
        import huggingface_hub
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
    except ImportError:
        raise invalid_arg(
            f"checkpoint '{hub_id}' looks like a hub id, which needs huggingface_hub: "
            + install_command("llm")
        ) from None
    token = os.environ.get("HF_TOKEN") or os.environ.get("PRIVATE_REPO_TOKEN") or None
    try:
        return Path(
            huggingface_hub.snapshot_download(hub_id, token=token, allow_patterns=HUB_FILES)
        )
    except RepositoryNotFoundError:
        raise not_found(
            f"the hub has no repository '{hub_id}', or it is private and the token gives no access"
        ) from None
    except LocalEntryNotFoundError as error:
        cause = f": {_first_line(error.__cause__)}" if error.__cause__ is not None else ""
        raise unavailable(
            f"'{hub_id}' is not in the local cache and cannot be fetched from the hub{cause}"
        ) from None
    except Exception as error:
        # The client passes on what its HTTP library raises, and that library differs by version.
        raise _failed(hub_id, error) from None


def _failed(hub_id: str, error: Exception) -> NaiadError:
    if isinstance(error, OSError) and error.errno in _CACHE_ERRORS:
        return unavailable(
            f"'{hub_id}' cannot be written to the cache of the hub's client: {error}; HF_HOME "
            "chooses another folder"
        )
    return unavailable(f"downloading '{hub_id}' failed: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
