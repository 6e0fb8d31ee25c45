"""Chat in the playground with tiny language models of random weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright.sync_api", reason="pip install --group browser")
pytest.importorskip("torch", reason="make test-llm installs torch and transformers")
pytest.importorskip("transformers", reason="make test-llm installs torch and transformers")
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.playground_models import write_chat_models
from tests.server.harness import Server, naiad


@pytest.fixture(scope="module")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("chat") / "repository"
    write_chat_models(repository)
    with naiad([str(repository)], []) as server:
        yield server


def test_streams_stops_and_shows_the_request_as_code(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Most tokens").fill("12")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("Hello")
    page.keyboard.press("Enter")
    reply = page.locator(".turn.assistant").first
    expect(reply).to_contain_text("first token after", timeout=60_000)
    expect(page.locator(".turn.refused")).to_have_count(0)

    page.get_by_label("Most tokens").fill("3000")
    page.get_by_label("Temperature").fill("1.5")
    page.get_by_label("Message").fill("Go on")
    page.get_by_role("button", name="Send").click()
    last = page.locator(".turn.assistant").last
    expect(last.locator("span").first).not_to_be_empty()
    stop = page.get_by_role("button", name="Stop")
    if stop.is_visible():
        stop.click()
    expect(last).to_contain_text("tokens")

    page.get_by_text("Show as code").click()
    page.get_by_role("tab", name="openai").click()
    code = page.get_by_role("region", name="Code").inner_text()
    assert "Be brief." in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace("3000", "5")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_refusal_is_explained_and_the_message_is_kept(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("Message").fill("x" * 9000)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.refused")).to_contain_text("The request is not valid")
    expect(page.get_by_label("Message")).to_have_value("x" * 9000)


def test_a_tool_is_called_and_the_conversation_goes_on_with_its_result(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("Most tokens").fill("200")
    page.get_by_label("Temperature").fill("0")
    page.get_by_text("Tools", exact=True).click()
    functions = page.get_by_label("Functions as JSON")
    functions.fill("{")
    page.get_by_label("Message").fill("What is the weather?")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("it is not JSON")
    expect(page.get_by_label("Message")).to_have_value("What is the weather?")

    # A grammar makes the model, whose weights are random, call the function.
    functions.fill(
        json.dumps(
            {
                "name": "get_weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Ulm", "Rom"]}},
                    "required": ["city"],
                    "additionalProperties": False,
                },
            }
        )
    )
    page.get_by_label("When to call").select_option("It must call get_weather")
    page.get_by_role("button", name="Send").click()
    call = page.locator(".call").first
    expect(call).to_contain_text("get_weather", timeout=60_000)
    expect(call).to_contain_text(re.compile('"city": "(Ulm|Rom)"'))
    result = page.get_by_label("Result of get_weather")

    page.get_by_label("Message").fill("Something else")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("A tool call waits for its result")

    page.get_by_label("When to call").select_option("It must not call one")
    page.get_by_label("Most tokens").fill("8")
    result.fill('{"temperature": 21}')
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".turn.assistant")).to_have_count(2)
    expect(page.locator(".turn.assistant").last).to_contain_text("first token after")
    page.get_by_text("Show as code").click()
    code = page.get_by_role("region", name="Code").inner_text()
    body = json.loads(code[code.index("-d '") + 4 : code.rindex("'")])
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][2]["content"] == '{"temperature": 21}'
    assert body["messages"][2]["tool_call_id"] == body["messages"][1]["tool_calls"][0]["id"]


def test_a_json_schema_holds(chat_server: Server, open_page: OpenPage) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("Most tokens").fill("300")
    page.get_by_text("Response format", exact=True).click()
    page.get_by_label("Format of the response").select_option("JSON schema")
    page.get_by_label("Schema", exact=True).fill(
        json.dumps(
            {
                "type": "object",
                "properties": {"answer": {"enum": ["yes", "no"]}},
                "required": ["answer"],
                "additionalProperties": False,
            }
        )
    )
    page.get_by_label("Message").fill("Is it so?")
    page.keyboard.press("Enter")
    reply = page.locator(".turn.assistant").first
    expect(reply).to_contain_text("valid JSON", timeout=60_000)
    text = reply.locator("span").first.inner_text()
    assert json.loads(text)["answer"] in ("yes", "no")


def test_two_models_read_the_same_message_side_by_side(
    chat_server: Server, open_page: OpenPage
) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("Compare with").select_option("large")
    page.get_by_label("Most tokens").fill("20")
    page.get_by_label("Message").fill("Hello")
    page.keyboard.press("Enter")
    for name in ("small", "large"):
        lane = page.get_by_role("log", name=f"Conversation with {name}", exact=True)
        expect(lane.locator(".turn.user")).to_have_text("Hello")
        figures = page.get_by_label(f"Times of {name}", exact=True)
        expect(figures).to_contain_text("tokens/s", timeout=60_000)
        expect(figures).to_contain_text(re.compile(r"first token after [\d.]+ m?s"))


def test_the_trace_of_a_chat_is_a_waterfall(chat_server: Server, open_page: OpenPage) -> None:
    page = open_page(chat_server, "playground/small")
    page.get_by_label("Most tokens").fill("5")
    page.get_by_label("Trace the request").check()
    page.get_by_label("Message").fill("Hello")
    page.keyboard.press("Enter")
    picture = page.get_by_role("img", name="Trace of small")
    expect(picture).to_be_visible(timeout=60_000)
    expect(picture).to_have_attribute("aria-label", re.compile("small 1 .*send"))
