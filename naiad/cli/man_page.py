"""The command `naiad man`: prints a manual page, made from the texts of --help.

Out: roff with the macros of man(7). A text is escaped, so that no line of it is a request to roff.
"""

from __future__ import annotations

import click

from naiad import __version__
from naiad.tools.command_context import CONTEXT


@click.command("man", context_settings=CONTEXT)
@click.argument("name", metavar="[COMMAND]", default="")
@click.pass_context
def command(context: click.Context, name: str) -> int:
    """Print the manual page of naiad, or of one of its commands.

    To read it: naiad man serve | man -l -

    To install it: naiad man > ~/.local/share/man/man1/naiad.1
    """
    parent = context.parent
    assert parent is not None, "the command belongs to the group naiad"
    group = parent.command
    assert isinstance(group, click.Group)
    if not name:
        click.echo(manual(group, parent), nl=False)
        return 0
    subcommand = group.get_command(parent, name)
    if subcommand is None:
        known = ", ".join(group.list_commands(parent))
        raise click.UsageError(f"no command '{name}'. Commands: {known}")
    with _context(subcommand, name, parent) as opened:
        click.echo(manual(opened.command, opened), nl=False)
    return 0


def manual(subject: click.Command, context: click.Context) -> str:
    title = context.command_path.replace(" ", "-")
    usage = subject.get_usage(context).removeprefix("Usage: ")
    summary = subject.get_short_help_str(200).rstrip(".") or title
    lines = [
        f'.TH "{title.upper()}" "1" "" "naiad {__version__}" "User Commands"',
        ".SH NAME",
        f"{_escaped(title)} \\- {_escaped(summary)}",
        ".SH SYNOPSIS",
        _escaped(" ".join(usage.split())),
        ".SH DESCRIPTION",
        *_paragraphs(subject.help or summary),
        *_options(subject, context),
    ]
    if isinstance(subject, click.Group):
        lines += _commands(subject, context)
    lines += [".SH EXIT STATUS", "0 on success, 1 after an error, 130 after an interrupt."]
    return "\n".join(lines) + "\n"


class _Rows(click.HelpFormatter):
    """Collects what a command would print below its usage, as rows of roff."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write_heading(self, heading: str) -> None:
        self.lines.append(f'.SH "{_escaped(heading.upper())}"')

    def write_dl(self, rows: object, col_max: int = 30, col_spacing: int = 2) -> None:
        for term, text in rows:  # type: ignore[attr-defined]
            self.lines += [".TP", f"\\fB{_escaped(term)}\\fR", _escaped(text or term)]

    def write_text(self, text: str) -> None:
        self.lines += [".PP", _escaped(" ".join(text.split()))]

    def write_paragraph(self) -> None:
        pass


def _options(subject: click.Command, context: click.Context) -> list[str]:
    rows = _Rows()
    if isinstance(subject, click.Group):
        click.Command.format_options(subject, context, rows)
    else:
        subject.format_options(context, rows)
    return rows.lines


def _commands(group: click.Group, context: click.Context) -> list[str]:
    lines = [".SH COMMANDS"]
    for name in group.list_commands(context):
        subcommand = group.get_command(context, name)
        if subcommand is not None and not subcommand.hidden:
            text = subcommand.get_short_help_str(200)
            lines += [".TP", f"\\fB{_escaped(name)}\\fR", _escaped(text)]
    return lines


def _context(subcommand: click.Command, name: str, parent: click.Context) -> click.Context:
    """A lazy command is imported by making its context, which must not run anything."""
    return subcommand.make_context(name, [], parent, resilient_parsing=True)


def _paragraphs(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in text.replace("\b", "").strip().split("\n\n"):
        lines += [".PP", _escaped(" ".join(paragraph.split()))]
    return lines


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    # A line that begins with a period or an apostrophe would be a request.
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
