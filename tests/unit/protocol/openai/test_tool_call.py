"""Tool calls in the formats of Hermes, Qwen, Llama 3 and Mistral: the same however the text is cut
into pieces."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.protocol.openai.chat import collect_calls
from naiad.protocol.openai.tool_call import MAX_HEAD_CHARACTERS, NamedCallReader, ToolCallReader

NAMES = frozenset({"get_weather", "add"})
PARIS = {"city": "Paris", "note": 'a "quoted" } brace'}
ARGUMENTS = json.dumps(PARIS)
WEATHER = ("get_weather", PARIS)
ADD = ("add", {"a": 1})

CASES: dict[str, tuple[str, str, list[tuple[str, Any]]]] = {
    "hermes": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "",
        [WEATHER],
    ),
    "hermes after text": (
        'Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        "Let me see.\n",
        [ADD],
    ),
    "hermes twice": (
        f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>\n'
        '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
        "",
        [WEATHER, ADD],
    ),
    "hermes then text": (
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>Done.',
        "Done.",
        [ADD],
    ),
    "hermes unknown name": (
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        "",
        [("other", {})],
    ),
    "llama": (f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "", [WEATHER]),
    "llama with type": (
        f'{{"type": "function", "name": "get_weather", "parameters": {ARGUMENTS}}}',
        "",
        [WEATHER],
    ),
    "llama twice": (
        f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}; '
        '{"name": "add", "parameters": {"a": 1}}',
        "",
        [WEATHER, ADD],
    ),
    "llama with tag": ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', "", [ADD]),
    "llama no arguments": ('{"name": "add"}', "", [("add", {})]),
    "null arguments": ('{"name": "add", "arguments": null}', "", [("add", {})]),
    "arguments in a string": ('{"name": "add", "arguments": "{\\"a\\": 1}"}', "", [ADD]),
    "mistral": (
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ARGUMENTS}}}, '
        '{"name": "add", "arguments": {"a": 1}}]',
        "",
        [WEATHER, ADD],
    ),
    "mistral with ids": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
        "",
        [ADD],
    ),
    "mistral marker skipped": (
        f' [{{"name": "get_weather", "arguments": {ARGUMENTS}}}]',
        "",
        [WEATHER],
    ),
    "mistral named": (
        f'[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}[TOOL_CALLS]add[ARGS]{{"a": 1}}',
        "",
        [WEATHER, ADD],
    ),
    "mistral named, markers skipped": (f"get_weather{ARGUMENTS}", "", [WEATHER]),
    "text": ("The weather is fine; a < b and [x].", "The weather is fine; a < b and [x].", []),
    "text like a marker": ("<tool_box> [TOOL] get", "<tool_box> [TOOL] get", []),
    "text like a name": ("get_weather is a function", "get_weather is a function", []),
    "json that is no call": ('{"city": "Paris"}', '{"city": "Paris"}', []),
    "json with a name of its own": (
        '{"name": "Bob", "parameters": {"age": 3}} ok',
        '{"name": "Bob", "parameters": {"age": 3}} ok',
        [],
    ),
    "list that is no call": ('[{"city": 1}]', '[{"city": 1}]', []),
    "marker only": ("<tool_call>", "", []),
    "marker and nonsense": ("<tool_call>{oops", "{oops", []),
    "cut marker": ("Hi <tool_c", "Hi <tool_c", []),
    "nothing": ("", "", []),
    "long json": (
        '{"x": "' + "y" * (MAX_HEAD_CHARACTERS + 10) + '"}',
        '{"x": "' + "y" * (MAX_HEAD_CHARACTERS + 10) + '"}',
        [],
    ),
}


def read(pieces: list[str], reader: Any = None) -> tuple[str, list[tuple[str, Any]]]:
    reader = reader or ToolCallReader(NAMES)
    content, calls = collect_calls([*(reader.feed(piece) for piece in pieces), reader.finish()])
    assert len({call.id for call in calls}) == len(calls) == reader.num_calls
    return content, [
        (call.function.name, json.loads(call.function.arguments or "{}")) for call in calls
    ]


@pytest.mark.parametrize("case", CASES)
def test_whole_text(case: str) -> None:
    text, content, calls = CASES[case]
    assert read([text]) == (content, calls)


@pytest.mark.parametrize("case", CASES)
def test_character_by_character(case: str) -> None:
    text, content, calls = CASES[case]
    assert read(list(text)) == (content, calls)


@given(st.sampled_from([case for case in CASES if case != "long json"]), st.data())
def test_any_pieces(case: str, data: st.DataObject) -> None:
    text, content, calls = CASES[case]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == (content, calls)


@given(st.text(alphabet='<tool_ca>/[TOOL_CALLS]{}":, namergut\\', max_size=80), st.integers(1, 5))
def test_no_text_breaks_it(text: str, size: int) -> None:
    reader = ToolCallReader(NAMES)
    collect_calls(
        [*(reader.feed(text[at : at + size]) for at in range(0, len(text), size)), reader.finish()]
    )


def test_arguments_go_out_as_they_come() -> None:
    reader = ToolCallReader(NAMES)
    first = reader.feed('<tool_call>{"name": "get_weather", "arguments": {"ci')
    assert [(delta.name, delta.arguments) for delta in first.deltas] == [
        ("get_weather", ""),
        (None, '{"ci'),
    ]
    assert [delta.arguments for delta in reader.feed('ty": "Par').deltas] == ['ty": "Par']
    assert [delta.arguments for delta in reader.feed('is"}}</tool').deltas] == ['is"}']
    assert reader.finish().content == ""


def test_a_call_that_is_cut_by_its_length_keeps_what_there_is() -> None:
    reader = ToolCallReader(NAMES)
    content, calls = collect_calls(
        [reader.feed('{"name": "add", "parameters": {"a": 1'), reader.finish()]
    )
    assert (content, calls[0].function.arguments) == ("", '{"a": 1')


def test_forced_calls() -> None:
    text = '[{"name": "add", "parameters": {"a": 1}},\n{"name": "get_weather", "parameters": {}}]'
    for pieces in ([text], list(text)):
        assert read(pieces, ToolCallReader(NAMES, is_forced=True)) == (
            "",
            [ADD, ("get_weather", {})],
        )


def test_the_named_function() -> None:
    assert read(['{"a"', ": 1}"], NamedCallReader("add")) == ("", [ADD])
    assert read([], NamedCallReader("add")) == ("", [("add", {})])


def test_ids_suit_mistrals_templates() -> None:
    reader = ToolCallReader(NAMES)
    call_id = reader.feed('{"name": "add", "parameters": {').deltas[0].id
    assert call_id is not None
    assert len(call_id) == 9
    assert call_id.isalnum()
