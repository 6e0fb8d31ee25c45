"""Makes prompts for language models: synthetic ones of a given length, or from a file or a trace.

In:  options. Out: a list of Prompt, each with its number of tokens and the number to generate.
The generator is seeded, so that two runs send the same prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from naiad.perf.data.token_counter import TokenCounter
from naiad.settings.option import OptionError

DEFAULT_INPUT_TOKENS = 550

# Common short words. With the space before it, each is one token in all byte-pair vocabularies that
# we know of.
_PROSE = """
    the of and to in is you that it he was for on are as with his they at be this have from or one
    had by word but not what all were we when your can said there use an each which she do how their
    if will up other about out many then them these so some her would make like him into time has
    look two more write go see number no way could people my than first water been call who oil its
    now find long down day did get come made may part over new sound take only little work know
    place year live me back give most very after thing our just name good sentence man think say
    great where help through much before line right too mean old any same tell boy follow came want
    show also around form three small set put end does another well large must big even
"""
_WORDS = _PROSE.split()


class Prompt(msgspec.Struct, frozen=True):
    text: str
    num_tokens: int
    max_tokens: int = 0
    """Number of tokens to generate; 0 if the server decides."""
    sent_s: float = 0.0
    """Time at which a trace sent the prompt, relative to its first prompt."""


class Lengths(msgspec.Struct, frozen=True):
    input_mean: int = DEFAULT_INPUT_TOKENS
    input_deviation: float = 0.0
    output_mean: int = 0
    output_deviation: float = 0.0
    prefix_tokens: int = 0


def _length(random: Random, mean: int, deviation: float) -> int:
    return max(1, round(random.gauss(mean, deviation))) if mean else 0


def synthetic(count: int, lengths: Lengths, counter: TokenCounter, seed: int = 0) -> list[Prompt]:
    random = Random(seed)
    prefix = _text(random, lengths.prefix_tokens, counter)
    prompts = []
    for _ in range(count):
        num_tokens = _length(random, lengths.input_mean, lengths.input_deviation)
        rest = _text(random, max(1, num_tokens - lengths.prefix_tokens), counter)
        text = f"{prefix} {rest}" if prefix else rest
        prompts.append(
            Prompt(
                text,
                counter.count(text),
                _length(random, lengths.output_mean, lengths.output_deviation),
            )
        )
    return prompts


def _text(random: Random, num_tokens: int, counter: TokenCounter) -> str:
    text = " ".join(random.choices(_WORDS, k=num_tokens))
    while counter.count(text) < num_tokens:
        text += " " + " ".join(random.choices(_WORDS, k=max(1, num_tokens // 10)))
    return counter.cut(text, num_tokens)


def read_prompts(
    path: Path, lengths: Lengths, counter: TokenCounter, seed: int = 0
) -> list[Prompt]:
    """Reads prompts, one per line, or JSON lines with 'text', 'text_input' or 'prompt' and an
    optional 'max_tokens'. Raises OptionError."""
    random = Random(seed)
    prompts = []
    for number, line in enumerate(_lines(path), 1):
        entry = _entry(path, number, line)
        text = _text_of(entry)
        if text is None:
            raise OptionError(f"{path}, line {number}: expected a 'text' or a 'prompt'")
        limit = int(entry.get("max_tokens") or entry.get("output_length") or 0)
        prompts.append(
            Prompt(
                text,
                counter.count(text),
                limit or _length(random, lengths.output_mean, lengths.output_deviation),
            )
        )
    if not prompts:
        raise OptionError(f"{path} has no prompts")
    return prompts


def read_trace(path: Path, counter: TokenCounter, seed: int = 0) -> list[Prompt]:
    """Reads a trace: JSON lines with 'timestamp' in ms, and a prompt or 'input_length' in tokens.

    'output_length' or 'max_tokens' is optional. 'hash_ids' name blocks of 512 tokens that prompts
    have in common, as in the Mooncake traces. Raises OptionError.
    """
    prompts: list[Prompt] = []
    for number, line in enumerate(_lines(path), 1):
        entry = _entry(path, number, line)
        if not isinstance(entry.get("timestamp"), int | float):
            raise OptionError(f"{path}, line {number}: expected a 'timestamp' in ms")
        text = _text_of(entry)
        if text is None:
            text = _trace_text(path, number, entry, counter, seed)
        limit = int(entry.get("output_length") or entry.get("max_tokens") or 0)
        prompts.append(Prompt(text, counter.count(text), limit, float(entry["timestamp"]) / 1000))
    if not prompts:
        raise OptionError(f"{path} has no requests")
    prompts.sort(key=lambda prompt: prompt.sent_s)
    first_s = prompts[0].sent_s
    return [msgspec.structs.replace(prompt, sent_s=prompt.sent_s - first_s) for prompt in prompts]


_BLOCK_TOKENS = 512


def _trace_text(
    path: Path, number: int, entry: dict[str, Any], counter: TokenCounter, seed: int
) -> str:
    missing = entry.get("input_length")
    if not isinstance(missing, int) or missing < 1:
        raise OptionError(f"{path}, line {number}: expected a prompt or an 'input_length'")
    parts: list[str] = []
    for block in entry.get("hash_ids") or []:
        if missing <= 0:
            break
        parts.append(_text(Random(f"{seed}/{block}"), min(_BLOCK_TOKENS, missing), counter))
        missing -= _BLOCK_TOKENS
    if missing > 0:
        parts.append(_text(Random(f"{seed}/{number}"), missing, counter))
    return " ".join(parts)


def _lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from None
    return (line for line in text.splitlines() if line.strip())


def _entry(path: Path, number: int, line: str) -> dict[str, Any]:
    if not line.lstrip().startswith("{"):
        return {"text": line.strip()}
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise OptionError(f"{path}, line {number}: not JSON: {error}") from None
    return dict(entry)


def _text_of(entry: dict[str, Any]) -> str | None:
    text = entry.get("text") or entry.get("text_input") or entry.get("prompt")
    return text if isinstance(text, str) else None
