"""The error of an engine whose ranks cannot go on together: only new processes help."""

from __future__ import annotations


class RankLostError(RuntimeError):
    """A rank died or hangs."""
