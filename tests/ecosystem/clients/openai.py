import os

import openai

client = openai.OpenAI(base_url=f"http://{os.environ['NAIAD_HTTP']}/v1", api_key="none")
names = [model.id for model in client.models.list()]
assert {"tiny", "words"} <= set(names), names
messages = [{"role": "user", "content": "Hello"}]
whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5, temperature=0)
stream = client.chat.completions.create(
    model="tiny", messages=messages, max_tokens=5, temperature=0, stream=True
)
text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
assert text == whole.choices[0].message.content
assert client.responses.create(model="tiny", input="Hello", max_output_tokens=5).output_text
choice = client.chat.completions.create(
    model="tiny", messages=messages, max_tokens=10,
    extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
).choices[0]  # fmt: skip
assert choice.message.content in ("yes", "no"), choice
try:
    client.chat.completions.create(model="tiny", messages=messages, extra_body={"max_tokns": 5})
except openai.BadRequestError as error:
    assert error.param == "max_tokns", error
else:
    raise AssertionError("a misspelt field was accepted")
