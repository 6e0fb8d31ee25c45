"""Starts a template process: `PYTHON -P bootstrap.py PLACES BACKEND SOCKET_FD SERVER_PID`.

PLACES is JSON: the folder that holds the server's `naiad`, and the folders of packages that this
interpreter lacks, by name.
Rule: nothing is put on sys.path, not even the current directory (`-P`). A model in its own
      environment sees that environment, and only those parts of the server that its worker needs.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec, PathFinder


class PlacedFinder:
    """Finds some top-level packages in given folders."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        place = self._places.get(name)
        return PathFinder.find_spec(name, [place]) if place is not None else None


def main() -> None:
    places = json.loads(sys.argv.pop(1))
    # The server's own code comes first, even if the environment has a package of that name. The
    # other packages are used only where the environment has none.
    sys.meta_path.insert(0, PlacedFinder({"naiad": places["naiad"]}))
    sys.meta_path.append(PlacedFinder(places["missing"]))
    from naiad.worker import template

    template.main()


if __name__ == "__main__":
    main()
