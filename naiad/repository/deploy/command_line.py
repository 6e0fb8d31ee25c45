"""The shell commands that do what a deployment does, for people who prefer a script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

_END = "END_OF_CONFIG"


def command_line(
    folder: Path, config: str | None, copies: Sequence[tuple[str, str]], version: int, address: str
) -> str:
    """`copies` are (file, target in the model's folder). `config` is None if config.pbtxt stays as
    it is. `address` is that of the server, with the options of curl that it needs."""
    quoted = shlex.quote(str(folder))
    lines = [f"mkdir -p {quoted}/{version}"]
    folders = sorted({str(Path(target).parent) for _, target in copies} - {".", str(version)})
    lines += [f"mkdir -p {quoted}/{shlex.quote(name)}" for name in folders]
    lines += [f"cp {shlex.quote(file)} {quoted}/{shlex.quote(target)}" for file, target in copies]
    if config is not None:
        lines += [f"cat > {quoted}/config.pbtxt <<'{_END}'", config.rstrip("\n"), _END]
    lines += [
        f"naiad check {shlex.quote(str(folder.parent))}",
        f"curl -X POST {address}/console/api/models/{quote(folder.name)}/load",
    ]
    return "\n".join(lines) + "\n"
