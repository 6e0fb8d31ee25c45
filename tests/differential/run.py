"""Compares Naiad with the genuine Triton and prints every difference (`make differential`).

    python -m tests.differential.run             both servers side by side; exits 1 if they differ
    python -m tests.differential.run --golden    Naiad against the recorded responses
    python -m tests.differential.run --record    records the genuine Triton's responses in golden/

The arguments may name suites, or subjects as in `python -m tests.differential.run main/generate`.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress

from tests.differential import golden
from tests.differential.case import Case, Response
from tests.differential.replay import Replay, genuine_triton
from tests.differential.response import difference, expected
from tests.differential.suites import SUITES, Suite
from tests.server.harness import Server, naiad

Responses = dict[str, dict[str, Response]]
MAX_ATTEMPTS = 8


def replay_suite(server: Server, suite: Suite, subject_name: str, is_genuine: bool) -> Responses:
    with closing(Replay(server, suite, is_genuine)) as replay:
        return {
            subject: {
                case.name: replay.response(case)
                for case in cases
                if not (is_genuine and case.is_ours_only)
            }
            for subject, cases in suite.subjects.items()
            if subject_name in ("", subject)
        }


def replay_genuine(suite: Suite, subject_name: str) -> Responses:
    """Repeats the replay if the genuine Triton dies: 2.51 sometimes does so at the end of a gRPC
    stream (SIGSEGV in its ModelStreamInferHandler)."""
    for _ in range(MAX_ATTEMPTS):
        with genuine_triton(suite) as server, suppress(OSError):
            responses = replay_suite(server, suite, subject_name, is_genuine=True)
            if server.is_ready("/v2/health/live"):
                return responses
        print(f"{suite.name}: the genuine Triton died; trying again", flush=True)
    raise SystemExit(f"{suite.name}: the genuine Triton died {MAX_ATTEMPTS} times")


def record(suite: Suite, subject_name: str) -> None:
    for subject, responses in replay_genuine(suite, subject_name).items():
        golden.write(suite.name, subject, responses)
        print(f"{suite.name}/{subject}: {len(responses)} responses recorded")


def compare(suite: Suite, subject_name: str, is_live: bool) -> int:
    """Prints the differences and returns how many there are."""
    if is_live:
        theirs = replay_genuine(suite, subject_name)
    else:
        theirs = {
            subject: golden.read(suite.name, subject)
            for subject in suite.subjects
            if subject_name in ("", subject)
        }
    with naiad(suite.repositories, suite.flags) as server:
        ours = replay_suite(server, suite, subject_name, is_genuine=False)
    num_differences = 0
    for subject, responses in ours.items():
        cases: dict[str, Case] = {case.name: case for case in suite.subjects[subject]}
        for name, response in responses.items():
            text = difference(expected(theirs[subject].get(name, {}), cases[name]), response)
            if text:
                num_differences += 1
                print(f"{suite.name}/{subject}: {name}\n{text}\n")
    total = sum(len(responses) for responses in ours.values())
    print(f"{suite.name}: {total} requests, {num_differences} differences")
    return num_differences


def main(arguments: list[str]) -> int:
    flags = [argument for argument in arguments if argument.startswith("--")]
    names = [argument for argument in arguments if not argument.startswith("--")] or list(SUITES)
    num_differences = 0
    for name in names:
        suite_name, _, subject_name = name.partition("/")
        suite = SUITES[suite_name]
        if "--record" in flags:
            record(suite, subject_name)
        else:
            num_differences += compare(suite, subject_name, is_live="--golden" not in flags)
    return 1 if num_differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
