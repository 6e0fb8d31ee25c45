"""The scenarios on the genuine Triton and on ours, and every difference printed.

    python -m tests.scenarios.run              ours against the recorded transcripts
    python -m tests.scenarios.run --record     ask the genuine Triton and rewrite golden/

Names of suites, or of single scenarios as suite/scenario, limit it.
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
    """A server on the suite's repository, and the folder in which its models note what they get."""
    with tempfile.TemporaryDirectory(prefix="scenes-") as folder:
        environment = {"RECORD_DIR": folder}
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
    wanted = [argument for argument in arguments if not argument.startswith("--")] or list(SUITES)
    found = 0
    for name in wanted:
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
                    found += 1
                    _print_difference(scenario, golden.get(scenario, []), transcript)
        if is_recording:
            lines = [
                f" {json.dumps(key)}: [\n"
                + ",\n".join(f"  {json.dumps(entry)}" for entry in golden[key])
                + "\n ]"
                for key in golden
            ]
            golden_path(suite_name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(
            f"{suite_name}: {len(names)} scenarios {'recorded' if is_recording else f'played, {found} differ'}"
        )
    return 1 if found else 0


def _print_difference(name: str, want: list[list[object]], got: list[list[object]]) -> None:
    print(f"--- {name}")
    for at in range(max(len(want), len(got))):
        pair = [json.dumps(side[at]) if at < len(side) else "nothing" for side in (want, got)]
        if pair[0] != pair[1]:
            print(f"  genuine: {pair[0]}\n  ours:    {pair[1]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
