"""Every block of the pages names its language and can be read as it. `make docs-run` runs them."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml
from google.protobuf import text_format

from naiad.pb import model_config_pb2
from tests.docs.blocks import LANGUAGES, MARKS, OUTPUT, SERVE, Block, read_pages
from tests.docs.run import _equals

PAGES = read_pages()
BLOCKS = [block for page in PAGES for block in page.blocks]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) > 80


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_is_what_its_fence_says(block: Block) -> None:
    assert block.language in LANGUAGES, "the fence names no language that is known"
    assert block.mark in {"", OUTPUT, SERVE, *MARKS}
    if block.language == "json":
        json.loads(block.text)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif block.language == "protobuf":
        text_format.Parse(block.text, model_config_pb2.ModelConfig())
    elif block.language == "python":
        compile(block.text, block.place, "exec")


def test_most_shell_blocks_run() -> None:
    shell = [block for block in BLOCKS if block.language == "sh"]
    run = [block for block in shell if block.mark in ("", SERVE)]
    assert len(run) * 3 >= len(shell) * 2, f"{len(run)} of {len(shell)}"


def test_three_dots_stand_for_lines() -> None:
    assert _equals("a\n...\nd", "a\nb\nc\nd\n")
    assert _equals("a\n...", "a\n")
    assert not _equals("a\n...\nd", "a\nb\n")
    assert not _equals("a.c", "abc\n")
