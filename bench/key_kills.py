"""Kills writers of a key file at random moments, and reads the file after each kill.

In:  the number of kills. Out: one line with the kills, the keys that were written, and the files
     that could not be read, which must be none.
Use: `python -m bench.key_kills [--kills 1000]`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from naiad.errors import NaiadError
from naiad.keys import key_change
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile

MAX_KEYS = 200


def _write(path: Path, name: str) -> None:
    """Adds keys without end; a long list is cut, so that writes stay short."""
    file = KeyFile(path)
    number = 0

    def edit(document: KeyDocument) -> KeyDocument:
        kept = KeyDocument(keys=document.keys[-MAX_KEYS:])
        return key_change.create(kept, NewKey(name=f"{name}-{number}"), utc_now()).document

    while True:
        file.change(edit)
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    chance = random.Random(1)
    num_broken, names = 0, set[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "keys.json"
        for kill in range(options.kills):
            writers = [
                fork.Process(target=_write, args=(path, f"{kill}-{number}")) for number in range(2)
            ]
            for writer in writers:
                writer.start()
            time.sleep(chance.uniform(0.005, 0.03))
            for writer in writers:
                assert writer.pid is not None
                os.kill(writer.pid, signal.SIGKILL)
                writer.join()
                writer.close()
            try:
                if path.exists():
                    names |= {key.name for key in KeyFile(path).read().keys}
            except NaiadError as error:
                num_broken += 1
                print(error.message)
    print(f"{options.kills} kills, {len(names)} keys seen, {num_broken} broken files")
    sys.exit(1 if num_broken else 0)


if __name__ == "__main__":
    main()
