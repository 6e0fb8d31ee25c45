"""Reads objectives and constraints from a config file or an option.

Objectives are a list of metrics or {metric: weight}. Constraints are {metric: {max: 50}}.
"""

from __future__ import annotations

from typing import Any

from naiad.analyze.metric import Constraints, Limit, Objectives, metric_name
from naiad.settings.option import OptionError


def objectives_of(value: Any) -> Objectives:
    """Raises OptionError."""
    if isinstance(value, list):
        value = dict.fromkeys(value, 1)
    if not isinstance(value, dict):
        raise OptionError(
            f"objectives: expected a list of metrics or metric: weight, got {value!r}"
        )
    objectives: Objectives = {}
    for name, weight in value.items():
        try:
            objectives[metric_name(name)] = float(weight)
        except (TypeError, ValueError):
            raise OptionError(
                f"objectives: the weight of {name} must be a number, got {weight!r}"
            ) from None
        if objectives[metric_name(name)] <= 0:
            raise OptionError(
                f"objectives: the weight of {name} must be more than 0, got {weight!r}"
            )
    return objectives


def constraints_of(value: Any) -> Constraints:
    """Raises OptionError."""
    if not isinstance(value, dict):
        raise OptionError(
            f"constraints: expected metric: {{min: ..}} or {{max: ..}}, got {value!r}"
        )
    constraints: Constraints = {}
    for name, limits in value.items():
        if not isinstance(limits, dict) or not limits or set(limits) - {"min", "max"}:
            raise OptionError(f"constraints: {name} needs min or max, got {limits!r}")
        try:
            bounds = {kind: float(bound) for kind, bound in limits.items()}
        except (TypeError, ValueError):
            raise OptionError(
                f"constraints: the limit of {name} must be a number, got {limits!r}"
            ) from None
        constraints[metric_name(name)] = Limit(bounds.get("min"), bounds.get("max"))
    return constraints
