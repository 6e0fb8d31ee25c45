import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.log.line import head, json_line, quote

# 2024-02-05 18:34:18.707423 UTC
TIME_NS = 1_707_158_058_707_423_999


def test_default_format_is_tritons() -> None:
    assert (
        head("INFO", TIME_NS, 4242, "/a/b/server.py", 17, "default")
        == "I0205 18:34:18.707423 4242 server.py:17] "
    )


def test_iso8601_format_is_tritons() -> None:
    assert (
        head("ERROR", TIME_NS, 4242, "server.py", 17, "ISO8601")
        == "2024-02-05T18:34:18Z E 4242 server.py:17] "
    )


def test_severity_letters() -> None:
    letters = [
        head(severity, TIME_NS, 1, "f", 1, "default")[0]
        for severity in ("INFO", "WARNING", "ERROR", "VERBOSE")
    ]
    assert letters == ["I", "W", "E", "I"]


def test_messages_are_escaped_as_triton_does() -> None:
    # What Triton 2.51 prints for this text, except DEL, which it lets through.
    assert (
        quote('esc \t\n\r \x01 \x7f \x1b é \u2028 / \\ " <>& 😀')
        == '"esc \\t\\n\\r \\u0001 \\u007F \\u001B é \u2028 / \\\\ \\" <>& 😀"'
    )


@settings(deadline=None)
@given(st.text())
def test_a_quoted_message_is_one_line_of_json(message: str) -> None:
    quoted = quote(message)
    assert json.loads(quoted) == message
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", quoted)


@settings(deadline=None)
@given(st.text(), st.text())
def test_a_json_line_contains_all_parts(message: str, request_id: str) -> None:
    line = json_line("WARNING", TIME_NS, 7, "/x/model.py", 3, message, request_id)
    assert line.endswith("\n")
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line[:-1])
    entry = json.loads(line)
    assert entry.pop("request_id", "") == request_id
    assert entry == {
        "time": "2024-02-05T18:34:18.707423Z", "severity": "WARNING", "pid": 7,
        "file": "model.py", "line": 3, "message": message,
    }  # fmt: skip


def test_a_message_that_is_not_unicode_still_gives_a_line() -> None:
    entry = json.loads(json_line("INFO", TIME_NS, 7, "f\udc80.py", 3, "bad \udcff name", "\udc81"))
    assert entry["message"] == "bad \\udcff name"


def test_a_file_name_cannot_forge_a_line() -> None:
    assert "\n" not in head("INFO", TIME_NS, 1, "evil\nE0101 forged", 1, "default")
