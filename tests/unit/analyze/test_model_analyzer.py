"""NVIDIA's command line of model-analyzer, as arguments of `naiad analyze`."""

from __future__ import annotations

import pytest

from naiad.analyze.command import command
from naiad.analyze.config_file import WITHOUT_EFFECT
from naiad.analyze.model_analyzer import translate
from naiad.settings.option import OptionError


@pytest.mark.parametrize(
    ("given", "arguments", "notes"),
    [
        ("profile -m models --profile-models a", "profile -m models --profile-models a", []),
        ("-m online profile -m models", "profile -m models", []),
        ("--mode=online -q profile -m models", "profile --progress off -m models", []),
        ("-v profile -f x.yaml", "profile --progress on -f x.yaml", []),
        (
            "profile --collect-cpu-metrics --gpus 0 1 -m models --perf-analyzer-timeout=600 -e out",
            "profile -m models -e out",
            [
                "--collect-cpu-metrics has no effect here",
                "--gpus has no effect here",
                "--perf-analyzer-timeout has no effect here",
            ],
        ),
        (
            "-q report -n a_config_1 -e out --output-formats html",
            "report -n a_config_1 -e out --output-formats html",
            ["--verbose and --quiet have no effect on report"],
        ),
        ("--help", "--help", []),
        ("--nonsense profile", "--nonsense profile", []),
        ("", "", []),
    ],
)
def test_translates_or_names_every_flag(given: str, arguments: str, notes: list[str]) -> None:
    translation = translate(given.split())
    assert (translation.arguments, translation.notes) == (arguments.split(), notes)


@pytest.mark.parametrize("given", ["-m offline profile", "--mode=offline profile", "--mode"])
def test_refuses_a_mode_that_does_not_exist(given: str) -> None:
    with pytest.raises(OptionError, match=r"^--mode: '(offline)?' is not supported"):
        translate(given.split())


def test_what_has_no_effect_is_not_an_option() -> None:
    """Otherwise a flag with an effect would be removed."""
    flags = {param.name for param in command.commands["profile"].params}
    assert not flags & WITHOUT_EFFECT
