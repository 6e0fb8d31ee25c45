import os

import litellm

base = f"http://{os.environ['NAIAD_HTTP']}/v1"


def ask(content, **fields):
    messages = [{"role": "user", "content": content}]
    return litellm.completion(
        "openai/tiny", messages=messages, api_base=base, api_key="none", max_tokens=5, **fields
    )


assert ask("Hello").choices[0].message.content
assert list(ask("Hello", stream=True))
try:
    ask("x" * 6000)
except litellm.ContextWindowExceededError:
    pass
else:
    raise AssertionError("a prompt that is too long was not recognised")
