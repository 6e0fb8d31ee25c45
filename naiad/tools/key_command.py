"""`naiad key`: create, list, show, revoke and rotate the API keys of a file, and show their use.

In:  the key file, which a server may be using at the same time. Out: the changed file; a running
     server follows within a second. The secret of a new key is printed once, alone on stdout, so
     that scripts can read it; everything else about it goes to stderr.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from naiad.errors import NaiadError, invalid_arg
from naiad.keys import key_change
from naiad.keys.api_class import DEFAULT_SCOPES, SCOPES
from naiad.keys.certificate import canonical_name
from naiad.keys.key import ApiKey, KeyDocument, parse_duration, shown_key, utc_now
from naiad.keys.key_change import Issued, NewKey
from naiad.keys.key_file import KeyFile
from naiad.keys.usage_file import KeyUsage, read_usage, usage_path
from naiad.tables import render_table
from naiad.tools.command_context import CONTEXT


@click.group("key", context_settings=CONTEXT)
def command() -> None:
    """Manage the API keys of a server.

    Start the server with --api-key-file FILE. It follows changes of the file within a second.
    """


_file = click.option(
    "--api-key-file",
    "path",
    metavar="FILE",
    required=True,
    envvar="NAIAD_API_KEY_FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The key file. NAIAD_API_KEY_FILE may name it, too.",
)
_json = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@command.command("create", context_settings=CONTEXT)
@click.argument("name")
@click.option(
    "--models",
    metavar="PATTERN,...",
    default="*",
    show_default=True,
    help="Models that the key may see and use, e.g. 'llama*,digits'.",
)
@click.option(
    "--scopes",
    metavar="SCOPE,...",
    default=",".join(DEFAULT_SCOPES),
    show_default=True,
    help=f"What the key may do: {', '.join(SCOPES)}.",
)
@click.option("--expires", metavar="DURATION", help="Time until the key expires, e.g. 30d or 24h.")
@click.option("--rpm", type=int, metavar="N", help="Maximum number of requests per minute.")
@click.option("--tpm", type=int, metavar="N", help="Maximum number of tokens per minute.")
@click.option("--max-parallel", type=int, metavar="N", help="Maximum number of requests at a time.")
@click.option("--tokens-per-day", type=int, metavar="N", help="Maximum number of tokens per day.")
@click.option(
    "--priority", type=int, metavar="N", default=0, help="Weight among other keys, from 0 to 100."
)
@click.option(
    "--metadata", metavar="KEY=VALUE", multiple=True, help="A note about the key. May be repeated."
)
@click.option(
    "--client-subject",
    "subjects",
    metavar="NAME",
    multiple=True,
    help="A client certificate with this subject stands for the key: 'CN=alice,O=Example', "
    "'URI:spiffe://example.com/alice' or 'DNS:alice.example.com'. May be repeated.",
)
@_file
@_json
def create(
    name: str,
    models: str,
    scopes: str,
    expires: str | None,
    rpm: int | None,
    tpm: int | None,
    max_parallel: int | None,
    tokens_per_day: int | None,
    priority: int,
    metadata: tuple[str, ...],
    subjects: tuple[str, ...],
    path: Path,
    is_json: bool,
) -> None:
    """Create a key and print its secret, which cannot be shown again."""
    now = utc_now()
    wanted = NewKey(
        name=name,
        models=_split(models),
        scopes=_split(scopes),
        expires_at=None if expires is None else now + parse_duration(expires, "--expires"),
        rpm_limit=rpm,
        tpm_limit=tpm,
        max_parallel_requests=max_parallel,
        tokens_per_day=tokens_per_day,
        priority=priority,
        metadata=_metadata(metadata),
        client_subjects=tuple(map(_subject, subjects)),
    )
    _print_issued(
        _issue(path, lambda document: key_change.create(document, wanted, now)), is_json=is_json
    )


@command.command("list", context_settings=CONTEXT)
@_file
@_json
def list_keys(path: Path, is_json: bool) -> None:
    """List all keys, without their secrets."""
    now = utc_now()
    keys = [shown_key(key, now) for key in KeyFile(path).read().keys]
    if is_json:
        click.echo(json.dumps(keys, indent=2))
        return
    rows = [
        (
            key["id"],
            key["name"],
            key["state"],
            key["expires_at"] or "never",
            ",".join(key["models"]),
            ",".join(key["scopes"]),
            _limits_text(key),
        )
        for key in keys
    ]
    header = ["Id", "Name", "State", "Expires", "Models", "Scopes", "Limits"]
    click.echo(render_table(header, rows))


@command.command("show", context_settings=CONTEXT)
@click.argument("key", metavar="ID|NAME")
@_file
def show(key: str, path: Path) -> None:
    """Show one key as JSON, without its secret."""
    found = key_change.find(KeyFile(path).read(), key)
    click.echo(json.dumps(shown_key(found, utc_now()), indent=2))


@command.command("revoke", context_settings=CONTEXT)
@click.argument("keys", metavar="ID|NAME...", nargs=-1, required=True)
@_file
def revoke(keys: tuple[str, ...], path: Path) -> None:
    """Revoke keys: their next request fails, also on connections that are open."""
    revoked: list[ApiKey] = []

    def edit(document: KeyDocument) -> KeyDocument:
        for text in keys:
            found = key_change.find(document, text)
            revoked.append(found)
            document = key_change.revoke(document, found, utc_now())
        return document

    KeyFile(path).change(edit)
    for key in revoked:
        click.echo(f"revoked {key.id} ({key.name})", err=True)


@command.command("rotate", context_settings=CONTEXT)
@click.argument("key", metavar="ID|NAME")
@click.option(
    "--grace",
    metavar="DURATION",
    default="24h",
    show_default=True,
    help="How long the old secret stays valid; 0 ends it at once.",
)
@_file
@_json
def rotate(key: str, grace: str, path: Path, is_json: bool) -> None:
    """Give a key a new secret and print it."""
    period = timedelta() if grace.strip() == "0" else parse_duration(grace, "--grace")

    def edit(document: KeyDocument) -> Issued:
        return key_change.rotate(document, key_change.find(document, key), utc_now(), period)

    _print_issued(_issue(path, edit), is_json=is_json)


@command.command("usage", context_settings=CONTEXT)
@_file
@_json
def usage(path: Path, is_json: bool) -> None:
    """Show what each key has used, as the server last wrote it."""
    used = read_usage(usage_path(path)).keys
    today = int(utc_now().timestamp() // 86400)
    rows = []
    for key in KeyFile(path).read().keys:
        counts = used.get(key.id, KeyUsage())
        tokens_today = counts.tokens_today if counts.day == today else 0
        rows.append(
            {
                "id": key.id,
                "name": key.name,
                "requests": counts.requests,
                "refused": counts.refused,
                "prompt_tokens": counts.prompt_tokens,
                "output_tokens": counts.output_tokens,
                "tokens_today": tokens_today,
                "tokens_per_day": key.tokens_per_day,
            }
        )
    if is_json:
        click.echo(json.dumps(rows, indent=2))
        return
    header = ["Id", "Name", "Requests", "Refused", "Prompt tokens", "Output tokens", "Today"]
    click.echo(
        render_table(
            header,
            [
                [str(value) for value in list(row.values())[:6]]
                + [f"{row['tokens_today']} of {row['tokens_per_day'] or 'any'} tokens"]
                for row in rows
            ],
        )
    )


def _issue(path: Path, edit: Callable[[KeyDocument], Issued]) -> Issued:
    """The secret is printed only after the file has been written."""
    issued: list[Issued] = []

    def change(document: KeyDocument) -> KeyDocument:
        issued.append(edit(document))
        return issued[0].document

    KeyFile(path).change(change)
    return issued[0]


def _print_issued(issued: Issued, *, is_json: bool) -> None:
    shown = shown_key(issued.key, utc_now())
    if is_json:
        click.echo(json.dumps({**shown, "key": issued.token}, indent=2))
        return
    click.echo(f"key {issued.key.id} ({issued.key.name}); it is shown only now:", err=True)
    click.echo(issued.token)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _subject(text: str) -> str:
    try:
        return canonical_name(text)
    except NaiadError as error:
        raise invalid_arg(f"--client-subject: {error.message}") from None


def _metadata(texts: tuple[str, ...]) -> dict[str, str]:
    metadata: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise invalid_arg(f"--metadata: '{text}' is not of the kind KEY=VALUE")
        metadata[name.strip()] = value
    return metadata


def _limits_text(key: dict[str, Any]) -> str:
    names = {
        "rpm_limit": "rpm",
        "tpm_limit": "tpm",
        "max_parallel_requests": "parallel",
        "tokens_per_day": "tokens/day",
    }
    limits = [f"{key[field]} {name}" for field, name in names.items() if key[field] is not None]
    return ", ".join(limits) or "none"
