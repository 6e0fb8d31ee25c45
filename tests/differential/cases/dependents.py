"""Ensembles and their steps in explicit mode: which models are loaded, unloaded and restored
together. The order of these cases matters."""

from __future__ import annotations

from tests.differential.case import Case, health, infer
from tests.differential.cases.model_control import ANY, index, load, unload

DEPENDENTS = {"parameters": {"unload_dependents": True}}
CASES: list[Case] = [
    load("the outer ensemble brings its parts", "outer"),
    index("the outer ensemble brings its parts"),
    infer("through two ensembles", "outer", ANY),
    unload("a part takes its ensembles with it", "part"),
    index("a part takes its ensembles with it"),
    infer("of an ensemble that went with its part", "outer", ANY),
    health("ready after an ensemble went with its part", "ready"),
    load("a part brings its ensembles back", "part"),
    index("a part brings its ensembles back"),
    unload("dependents, but not what was asked for by name", "outer", DEPENDENTS),
    index("dependents, but not what was asked for by name"),
    unload("the part", "part"),
    load("one ensemble", "outer"),
    load("another on the same part", "other"),
    unload("dependents, but not what others need", "outer", DEPENDENTS),
    index("dependents, but not what others need"),
    unload("the last one takes the part with it", "other", DEPENDENTS),
    index("the last one takes the part with it"),
    load("on a part that fails", "on_bad", normalise=("load reason",)),
    index("on a part that fails"),
    infer("of an ensemble that could not be", "on_bad", ANY),
    load("on a part that is not there", "on_nothing"),
    load("a circle", "round"),
    index("after ensembles that could not be"),
]
