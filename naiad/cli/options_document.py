"""The tables of options in docs/perf.md and docs/analyze.md, from the declarations.

`python -m naiad.cli.options_document` rewrites them; a test fails when they are stale.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from naiad.analyze.settings import ProfileOptions, ReportOptions
from naiad.perf.options import PerfOptions
from naiad.settings.option import Option, declared_options
from naiad.tools.options_command import default_words, spelling

PAGES: dict[str, list[tuple[str, type[msgspec.Struct]]]] = {
    "perf.md": [("Options", PerfOptions)],
    "analyze.md": [("Options of profile", ProfileOptions), ("Options of report", ReportOptions)],
}
MARK = "<!-- What follows is written by `python -m naiad.cli.options_document`; a test fails when it is stale. -->"


def with_tables(page: str, text: str) -> str:
    """The page's text with everything after the mark written anew."""
    kept = text.partition(MARK)[0]
    parts = [f"\n## {title}\n{option_tables(struct)}" for title, struct in PAGES[page]]
    return f"{kept}{MARK}\n" + "".join(parts)


def option_tables(struct: type[msgspec.Struct]) -> str:
    groups: dict[str, list[Option]] = {}
    for option in declared_options(struct).values():
        groups.setdefault(option.flag.group, []).append(option)
    parts: list[str] = []
    for title, options in groups.items():
        parts.append(f"\n### {title}\n\n| option | default | |\n|---|---|---|\n")
        parts += [_row(option) for option in options]
    return "".join(parts)


def _row(option: Option) -> str:
    own = " *Own.*" if option.flag.is_extension else ""
    cells = (f"`{spelling(option)}`", default_words(option), option.flag.help + own)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def main() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for page in PAGES:
        (docs / page).write_text(with_tables(page, (docs / page).read_text()))


if __name__ == "__main__":
    main()
