"""Objectives and constraints in the forms that people write them: lists, {metric: weight}, {metric:
{max: 50}}."""

from __future__ import annotations

from typing import Any

from naiad.analyze.metric import Constraints, Limit, Objectives, metric_name
from naiad.settings.option import OptionError


def objectives_of(given: Any) -> Objectives:
    if isinstance(given, list):
        given = dict.fromkeys(given, 1)
    if not isinstance(given, dict):
        raise OptionError(
            f"objectives: expected a list of metrics or metric: weight, got {given!r}"
        )
    found: Objectives = {}
    for name, weight in given.items():
        try:
            found[metric_name(name)] = float(weight)
        except (TypeError, ValueError):
            raise OptionError(
                f"objectives: the weight of {name} must be a number, got {weight!r}"
            ) from None
        if found[metric_name(name)] <= 0:
            raise OptionError(
                f"objectives: the weight of {name} must be more than 0, got {weight!r}"
            )
    return found


def constraints_of(given: Any) -> Constraints:
    if not isinstance(given, dict):
        raise OptionError(
            f"constraints: expected metric: {{min: ..}} or {{max: ..}}, got {given!r}"
        )
    found: Constraints = {}
    for name, limits in given.items():
        if not isinstance(limits, dict) or not limits or set(limits) - {"min", "max"}:
            raise OptionError(f"constraints: {name} needs min or max, got {limits!r}")
        try:
            bounds = {kind: float(value) for kind, value in limits.items()}
        except (TypeError, ValueError):
            raise OptionError(
                f"constraints: the limit of {name} must be a number, got {limits!r}"
            ) from None
        found[metric_name(name)] = Limit(bounds.get("min"), bounds.get("max"))
    return found
