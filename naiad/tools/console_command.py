"""`naiad console`: the link with which a page may change the server."""

from __future__ import annotations

import click

from naiad.files.console_link import read_links
from naiad.tools.command_context import CONTEXT


@click.command("console", context_settings=CONTEXT)
@click.option("--port", type=int, help="Only the server with this HTTP port.")
@click.option(
    "--token",
    "only_token",
    is_flag=True,
    help="Print only the token, which scripts send as the header 'x-naiad-console'.",
)
def command(port: int | None, only_token: bool) -> None:
    """Print the link to the console of a server that runs.

    The link contains a token, with which a page may change the server. Only the user who started
    the server can print it. A server with API keys has no token: its console asks for a key.
    """
    links = [link for link in read_links() if port is None or link.port == port]
    if not links:
        where = "" if port is None else f" on port {port}"
        raise click.ClickException(
            f"this user runs no server{where} whose console has a token; one that requires API "
            "keys has none"
        )
    if only_token and len(links) > 1:
        shown = ", ".join(link.url.partition("#")[0] for link in links)
        raise click.ClickException(f"several servers run: choose one by --port of {shown}")
    for link in links:
        click.echo(link.token if only_token else link.url)
