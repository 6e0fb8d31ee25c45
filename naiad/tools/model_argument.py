"""`naiad serve --model CHECKPOINT`: a repository for checkpoints that come without one, for as long
as the server lives."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.tools.init_llm import model_name
from naiad.tools.init_llm_config import llm_config


@contextmanager
def checkpoint_repository(checkpoints: Sequence[str]) -> Iterator[Path]:
    """Each checkpoint becomes a model of its own name; `NAME=CHECKPOINT` gives it another. Raises
    NaiadError."""
    with tempfile.TemporaryDirectory(prefix="naiad-model-") as folder:
        for text in checkpoints:
            name, has_name, checkpoint = text.partition("=")
            if not has_name:
                name, checkpoint = model_name(text), text
            target = Path(folder) / name
            if target.exists():
                raise invalid_arg(
                    f"two models of --model are called '{name}', expected NAME=CHECKPOINT for one of them"
                )
            if Path(checkpoint).exists():
                checkpoint = str(Path(checkpoint).resolve())
            (target / "1").mkdir(parents=True)
            (target / "config.pbtxt").write_text(llm_config(checkpoint))
        yield Path(folder)
