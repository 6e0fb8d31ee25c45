"""Plays the scenarios on Naiad and prints every difference from the recorded transcripts.

    python -m tests.scenarios.run              compares Naiad with the recorded transcripts
    python -m tests.scenarios.run --record     records the genuine Triton's transcripts in golden/

The arguments may name suites, or single scenarios as `suite/scenario`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator

from tests.scenarios.scene import Scene
from tests.scenarios.suites import SUITES, Suite, golden_path, read_golden
from tests.server.harness import Server, free_ports, launch_naiad, port_flags


@contextlib.contextmanager
def serving(suite: Suite, is_genuine: bool) -> Iterator[tuple[Server, str]]:
    """Serves the suite's repository. Yields the server and the folder in which its models record
    their requests."""
    with tempfile.TemporaryDirectory(prefix="scenes-") as folder:
        environment = {"RECORD_DIR": folder, **suite.environment}
        if is_genuine:
            from bench import oracle

            ports = free_ports()
            command = oracle.serve_command([suite.repository], [*port_flags(ports), *suite.flags])
            server = Server(command, ports, {**oracle.serve_environment(), **environment})
        else:
            server = launch_naiad([suite.repository], suite.flags, environment)
        try:
            yield server.wait_started(), folder
        finally:
            server.stop(limit_s=60)


def play(server: Server, folder: str, suite: Suite, name: str) -> list[list[object]]:
    scene = Scene(server, folder)
    try:
        suite.scenarios[name](scene)
    finally:
        scene.close()
    transcript: list[list[object]] = json.loads(json.dumps(scene.transcript))
    return transcript


def main(arguments: list[str]) -> int:
    is_recording = "--record" in arguments
    selected = [argument for argument in arguments if not argument.startswith("--")]
    num_different = 0
    for name in selected or list(SUITES):
        suite_name, _, single = name.partition("/")
        suite = SUITES[suite_name]
        names = [single] if single else list(suite.scenarios)
        golden = read_golden(suite_name) if os.path.exists(golden_path(suite_name)) else {}
        with serving(suite, is_genuine=is_recording) as (server, folder):
            for scenario in names:
                transcript = play(server, folder, suite, scenario)
                if is_recording:
                    golden[scenario] = transcript
                elif transcript != golden.get(scenario):
                    num_different += 1
                    _print_difference(scenario, golden.get(scenario, []), transcript)
        if is_recording:
            lines = [
                f" {json.dumps(key)}: [\n"
                + ",\n".join(f"  {json.dumps(entry)}" for entry in golden[key])
                + "\n ]"
                for key in golden
            ]
            golden_path(suite_name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
        result = "recorded" if is_recording else f"played, {num_different} differ"
        print(f"{suite_name}: {len(names)} scenarios {result}")
    return 1 if num_different else 0


def _print_difference(name: str, want: list[list[object]], got: list[list[object]]) -> None:
    print(f"--- {name}")
    for index in range(max(len(want), len(got))):
        genuine, ours = (
            json.dumps(side[index]) if index < len(side) else "nothing" for side in (want, got)
        )
        if genuine != ours:
            print(f"  genuine: {genuine}\n  ours:    {ours}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
