"""A Python model with a text input and a text output chats by the openai client, from the server
process and from frontend processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.harness import naiad

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "repository"
MESSAGES: Any = [{"role": "user", "content": "good morning"}]


@pytest.mark.parametrize("count", [1, 2])
def test_python_models_chat(count: int) -> None:
    flags = [
        f"--frontend-processes={count}",
        "--model-control-mode=explicit",
        "--load-model=shout",
        "--load-model=words",
    ]
    with (
        naiad([str(EXAMPLES)], flags) as server,
        openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none") as client,
    ):
        assert [model.id for model in client.models.list()] == ["shout", "words"]
        whole = client.chat.completions.create(model="shout", messages=MESSAGES)
        assert whole.choices[0].message.content == "GOOD MORNING"
        stream = client.chat.completions.create(model="words", messages=MESSAGES, stream=True)
        pieces = [chunk.choices[0].delta.content for chunk in stream]
        assert [piece for piece in pieces if piece] == ["good", "morning"]
        text = client.completions.create(model="words", prompt="good morning")
        assert text.choices[0].text == "goodmorning"
        with pytest.raises(openai.BadRequestError, match="'seed' cannot be honoured"):
            client.chat.completions.create(model="shout", messages=MESSAGES, seed=1)
