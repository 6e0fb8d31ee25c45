"""`make differential`: both servers on the same repositories, the same requests to each, and every
                     difference printed.

    python -m tests.differential.run              the genuine Triton and Naiad side by side; exit 1 when they differ
    python -m tests.differential.run --record     ask the genuine Triton alone and rewrite golden/
    python -m tests.differential.run --golden     Naiad against the recorded answers, without the genuine Triton

A suite's name or a subject's name limits it: `python -m tests.differential.run main/generate`.
"""

from __future__ import annotations

import sys
from contextlib import closing, suppress

from tests.differential import golden
from tests.differential.answer import difference, expected
from tests.differential.case import Answer, Case
from tests.differential.replay import Replay, genuine_triton
from tests.differential.suites import SUITES, Suite
from tests.server.harness import Server, naiad

Answers = dict[str, dict[str, Answer]]
MAX_ATTEMPTS = 8


def ask(server: Server, suite: Suite, wanted: str, is_genuine: bool) -> Answers:
    with closing(Replay(server, suite, is_genuine)) as replay:
        return {
            subject: {
                case.name: replay.answer(case)
                for case in cases
                if not (is_genuine and case.is_ours_only)
            }
            for subject, cases in suite.subjects.items()
            if wanted in ("", subject)
        }


def ask_genuine(suite: Suite, wanted: str) -> Answers:
    """Triton 2.51 dies now and then at the end of a gRPC stream (SIGSEGV in its
    ModelStreamInferHandler): then it is asked all over."""
    for _ in range(MAX_ATTEMPTS):
        with genuine_triton(suite) as server, suppress(OSError):
            answers = ask(server, suite, wanted, is_genuine=True)
            if server.is_ready("/v2/health/live"):
                return answers
        print(f"{suite.name}: the genuine Triton has died, and is asked again", flush=True)
    raise SystemExit(f"{suite.name}: the genuine Triton has died {MAX_ATTEMPTS} times")


def record(suite: Suite, wanted: str) -> None:
    answers = ask_genuine(suite, wanted)
    for subject, found in answers.items():
        golden.write(suite.name, subject, found)
        print(f"{suite.name}/{subject}: {len(found)} answers recorded")


def compare(suite: Suite, wanted: str, is_live: bool) -> int:
    """Prints the differences and gives their number."""
    if is_live:
        theirs = ask_genuine(suite, wanted)
    else:
        theirs = {
            subject: golden.read(suite.name, subject)
            for subject in suite.subjects
            if wanted in ("", subject)
        }
    with naiad(suite.repositories, suite.flags) as server:
        ours = ask(server, suite, wanted, is_genuine=False)
    found = 0
    for subject, answers in ours.items():
        cases: dict[str, Case] = {case.name: case for case in suite.subjects[subject]}
        for name, answer in answers.items():
            told = difference(expected(theirs[subject].get(name, {}), cases[name]), answer)
            if told:
                found += 1
                print(f"{suite.name}/{subject}: {name}\n{told}\n")
    total = sum(len(answers) for answers in ours.values())
    print(f"{suite.name}: {total} requests, {found} differences")
    return found


def main(arguments: list[str]) -> int:
    flags = [argument for argument in arguments if argument.startswith("--")]
    names = [argument for argument in arguments if not argument.startswith("--")] or list(SUITES)
    found = 0
    for name in names:
        suite_name, _, wanted = name.partition("/")
        suite = SUITES[suite_name]
        if "--record" in flags:
            record(suite, wanted)
        else:
            found += compare(suite, wanted, is_live="--golden" not in flags)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
