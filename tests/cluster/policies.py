"""A placement policy as a user would write it."""

from __future__ import annotations

from collections.abc import Sequence

from naiad.cluster.placement import Demand, Node, Placed


class FirstByName:
    def choose(self, demand: Demand, nodes: Sequence[Node], placed: Sequence[Placed]) -> str | None:
        return min(nodes, key=lambda node: node.name).id
