"""Builds nodes for the numbers of a JSON schema: integers, decimals, numbers within limits,
multiples.

Rule: a number has no more digits than a double holds exactly, so that every client reads the number
      that was written, and limits hold after rounding.
"""

from __future__ import annotations

import math
from decimal import Decimal

from naiad.errors import invalid_arg
from naiad.llm.grammar.rules import Characters, Node, Rule, Rules, choice, optional, repeat, series

MAX_DIGITS = 15
MAX_LIMIT = 10**MAX_DIGITS
MAX_EXCLUSIVE_DIGITS = 12
"""Maximum digits of an exclusive limit, so that no number next to it is rounded to it."""
MAX_LISTED = 1000
"""Maximum number of multiples within limits; they are listed one by one."""


def digit(low: int = 0, high: int = 9) -> Node:
    return Characters(((0x30 + low, 0x30 + high),))


DIGIT = digit()
POSITIVE = series(digit(1), repeat(DIGIT, 0, MAX_DIGITS - 1))
INTEGER = choice("0", series(optional(series("-")), POSITIVE))
NUMBER = series(
    optional(series("-")),
    choice("0", POSITIVE),
    optional(series(".", repeat(DIGIT, 1, MAX_DIGITS))),
    optional(
        series(
            Characters(((0x45, 0x45), (0x65, 0x65))),
            optional(Characters(((0x2B, 0x2B), (0x2D, 0x2D)))),
            repeat(DIGIT, 1, 2),
        )
    ),
)


class Limits:
    """The limits of a schema. Raises NaiadError for limits that are not numbers."""

    def __init__(self, schema: dict[str, object], path: str) -> None:
        self.low, self.is_above = self._strictest(schema, "minimum", "exclusiveMinimum", 1, path)
        self.high, self.is_below = self._strictest(schema, "maximum", "exclusiveMaximum", -1, path)

    @staticmethod
    def _strictest(
        schema: dict[str, object], name: str, exclusive: str, sign: int, path: str
    ) -> tuple[Decimal | None, bool]:
        candidates: list[tuple[Decimal, bool]] = []
        for key in (name, exclusive):
            value = schema.get(key)
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not math.isfinite(value)
            ):
                raise invalid_arg(f"keyword '{key}' at '{path}' of the schema is not a number")
            limit = Decimal(repr(value))
            if abs(limit) >= MAX_LIMIT or len(limit.normalize().as_tuple().digits) > MAX_DIGITS:
                raise invalid_arg(
                    f"keyword '{key}' of more than {MAX_DIGITS} digits at '{path}' of the schema "
                    f"cannot be enforced here"
                )
            candidates.append((limit * sign, key == exclusive))
        if not candidates:
            return None, False
        limit, is_exclusive = max(candidates)
        return limit * sign, is_exclusive

    @property
    def are_set(self) -> bool:
        return self.low is not None or self.high is not None


def integers(limits: Limits, path: str) -> Node:
    """Returns a node for the integers within limits. Raises NaiadError if there are none."""
    low, high = _whole_ends(limits)
    if low > high:
        raise invalid_arg(f"no value fits the schema at '{path}'")
    options: list[Node] = []
    if low < 0:
        options.append(series("-", choice(*_whole_between(max(1, -high), -low))))
    if high >= 0:
        options += _whole_between(max(0, low), high)
    return choice(*options)


def _whole_ends(limits: Limits) -> tuple[int, int]:
    low, high = 1 - MAX_LIMIT, MAX_LIMIT - 1
    if limits.low is not None:
        low = math.floor(limits.low) + 1 if limits.is_above else math.ceil(limits.low)
    if limits.high is not None:
        high = math.ceil(limits.high) - 1 if limits.is_below else math.floor(limits.high)
    return low, high


def _whole_between(low: int, high: int) -> list[Node]:
    """Returns options for the integers from `low` to `high`, which are not negative: one for each
    number of digits and common prefix."""
    options: list[Node] = []
    for size in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (size - 1) if size > 1 else 0)
        last = min(high, 10**size - 1)
        options += _same_size(str(first), str(last))
    return options


def _same_size(low: str, high: str) -> list[Node]:
    if not low:
        return [series("")]
    if set(low) == {"0"} and set(high) == {"9"}:
        return [repeat(DIGIT, len(low), len(low))]
    first, last = int(low[0]), int(high[0])
    if first == last:
        return [series(low[0], choice(*_same_size(low[1:], high[1:])))]
    rest = len(low) - 1
    options: list[Node] = []
    if set(low[1:]) - {"0"}:
        options.append(series(low[0], choice(*_same_size(low[1:], "9" * rest))))
        first += 1
    end: list[Node] = []
    if set(high[1:]) - {"9"}:
        end.append(series(high[0], choice(*_same_size("0" * rest, high[1:]))))
        last -= 1
    if first <= last:
        options.append(series(digit(first, last), repeat(DIGIT, rest, rest)))
    return options + end


def multiples(step: int, limits: Limits, name: str, rules: Rules, path: str) -> Node:
    """Adds a rule for each remainder; `name` is the prefix of their names."""
    if limits.are_set:
        low, high = _whole_ends(limits)
        first, last = -(-low // step), high // step
        if last - first >= MAX_LISTED:
            raise invalid_arg(
                f"keyword 'multipleOf' at '{path}' of the schema cannot be enforced here "
                f"with limits so far apart"
            )
        if first > last:
            raise invalid_arg(f"no value fits the schema at '{path}'")
        return choice(*(series(str(step * factor)) for factor in range(first, last + 1)))
    for remainder in range(step):
        following = [
            series(str(each), Rule(f"{name}-{(remainder * 10 + each) % step}"))
            for each in range(10)
        ]
        rules[f"{name}-{remainder}"] = choice(*following, *([series("")] if remainder == 0 else []))
    begins = choice(*(series(str(each), Rule(f"{name}-{each % step}")) for each in range(1, 10)))
    return choice("0", series(optional(series("-")), begins))


def numbers(limits: Limits, path: str) -> Node:
    """Returns a node for the numbers within limits. Raises NaiadError if there are none."""
    low = limits.low if limits.low is not None else Decimal(1 - MAX_LIMIT)
    high = limits.high if limits.high is not None else Decimal(MAX_LIMIT - 1)
    if low > high or (low == high and (limits.is_above or limits.is_below)):
        raise invalid_arg(f"no value fits the schema at '{path}'")
    for limit, is_exclusive in ((low, limits.is_above), (high, limits.is_below)):
        if (
            is_exclusive
            and len(str(abs(int(limit)))) + len(_fraction(limit)) > MAX_EXCLUSIVE_DIGITS
        ):
            raise invalid_arg(
                f"an exclusive limit of more than {MAX_EXCLUSIVE_DIGITS} digits at '{path}' "
                f"of the schema cannot be enforced here"
            )
    options: list[Node] = []
    if low < 0:
        nearest = max(Decimal(0), -high)
        options += [
            series("-", each)
            for each in _between(nearest, -low, limits.is_below and -high >= 0, limits.is_above)
        ]
    if high > 0 or (high == 0 and not limits.is_below):
        options += _between(
            max(Decimal(0), low), high, limits.is_above and low >= 0, limits.is_below
        )
    if not options:
        raise invalid_arg(f"no value fits the schema at '{path}'")
    return choice(*options)


def _between(low: Decimal, high: Decimal, is_above: bool, is_below: bool) -> list[Node]:
    """Returns options for the numbers between two limits that are not negative."""
    whole_low, whole_high = int(low), int(high)
    part_low, part_high = _fraction(low), _fraction(high)
    room = max(1, MAX_DIGITS - len(str(whole_high)) - max(len(part_low), len(part_high), 1))
    if whole_low == whole_high:
        if low == high:
            return [series(str(whole_low), *([f".{part_low}"] if part_low else []))]
        return [
            series(str(whole_low), each)
            for each in _fractions(part_low, part_high, is_above, is_below, room)
        ]
    options = [
        series(str(whole_low), each) for each in _fractions(part_low, None, is_above, False, room)
    ]
    if whole_high - whole_low > 1:
        middle = choice(*_whole_between(whole_low + 1, whole_high - 1))
        options.append(series(middle, optional(series(".", repeat(DIGIT, 1, room)))))
    options += [
        series(str(whole_high), each) for each in _fractions("", part_high, False, is_below, room)
    ]
    return options


def _fraction(value: Decimal) -> str:
    text = format(value, "f")
    return text.partition(".")[2].rstrip("0")


def _fractions(low: str, high: str | None, is_above: bool, is_below: bool, room: int) -> list[Node]:
    """Returns options for what follows the integer part: nothing, or a point and digits, from
    0.`low` to 0.`high` (up to 1 if `high` is None)."""
    size = max(len(low), len(high or ""), 1)
    options: list[Node] = []
    if not low and not is_above and (high != "" or not is_below):
        options.append(series(""))
    first, last = low.ljust(size, "0"), "9" * size if high is None else high.ljust(size, "0")
    # Digits are fixed as far as the limits have digits. Further digits are free between the limits,
    # but must not cross a limit at either end.
    lowest, highest = int(first), int(last) if high is None else int(last) - 1
    if is_above:
        if lowest <= highest:
            options.append(series(f".{first}", repeat(series("0"), 0, room - 1), digit(1, 9)))
        lowest += 1
    if lowest <= highest:
        inside = choice(*_same_size(str(lowest).zfill(size), str(highest).zfill(size)))
        options.append(series(".", inside, repeat(DIGIT, 0, room)))
    if high is not None and not is_below:
        options.append(series(f".{last}", repeat(series("0"), 0, room)))
    return options
