"""Makes a temporary repository for the checkpoints of `naiad serve --model CHECKPOINT`.

The repository exists while the server runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from naiad.errors import invalid_arg
from naiad.repository.deploy.llm_config import checkpoint_name, llm_config


@contextmanager
def checkpoint_repository(checkpoints: Sequence[str]) -> Iterator[Path]:
    """Yields a repository with one model per checkpoint.

    A model is called after its checkpoint unless the text is `NAME=CHECKPOINT`. Raises NaiadError
    if two models have the same name.
    """
    with tempfile.TemporaryDirectory(prefix="naiad-model-") as folder:
        for text in checkpoints:
            name, has_name, checkpoint = text.partition("=")
            if not has_name:
                name, checkpoint = checkpoint_name(text), text
            target = Path(folder) / name
            if target.exists():
                raise invalid_arg(
                    f"two --model options name the model '{name}'. Use --model NAME=CHECKPOINT to"
                    " name one of them differently."
                )
            if Path(checkpoint).exists():
                checkpoint = str(Path(checkpoint).resolve())
            (target / "1").mkdir(parents=True)
            (target / "config.pbtxt").write_text(llm_config(checkpoint))
        yield Path(folder)
