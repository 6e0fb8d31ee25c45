from pathlib import Path

from naiad.settings.document import settings_page
from naiad.settings.resolve import OPTIONS

DOCUMENT = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == settings_page(), (
        "run: python -m naiad.settings.document > docs/settings.md"
    )


def test_the_document_lists_every_option() -> None:
    page = settings_page()
    missing = [name for name in OPTIONS if f"`--{name}" not in page]
    assert missing == []
