"""Poll mode loads a changed model once it has stopped changing, and retries failed loads less and
less often."""

from __future__ import annotations

import itertools

from naiad.repository.watch.fingerprint import Fingerprint
from naiad.repository.watch.watch import MAX_POLLS_BETWEEN_RETRIES, Changes, Watch

NOTHING = Changes([], [])


def files(text: str) -> Fingerprint:
    return Fingerprint("", text, {})


def watch(**texts: str) -> Watch:
    started = Watch()
    started.start({key: files(text) for key, text in texts.items()}, [])
    return started


def changes(one: Watch, busy: tuple[str, ...] = (), **texts: str) -> Changes:
    return one.changes({key: files(text) for key, text in texts.items()}, busy)


def test_an_unchanged_model_is_not_loaded() -> None:
    one = watch(m="a")
    assert [changes(one, m="a") for _ in range(3)] == [NOTHING] * 3
    assert not one.is_changing


def test_a_change_counts_when_two_polls_see_it() -> None:
    one = watch(m="a")
    assert changes(one, m="b") == NOTHING
    assert one.is_changing
    assert changes(one, m="b") == Changes(["m"], [])
    assert not one.is_changing
    assert changes(one, m="b") == NOTHING


def test_a_model_is_not_loaded_while_it_is_being_copied() -> None:
    one = watch()
    assert [changes(one, m=str(size)) for size in range(20)] == [NOTHING] * 20
    assert changes(one, m="19") == Changes(["m"], [])


def test_other_models_do_not_wait_for_a_changing_one() -> None:
    one = watch()
    changes(one, slow="1", quick="x")
    assert changes(one, slow="2", quick="x") == Changes(["quick"], [])
    assert one.is_changing


def test_a_model_is_removed_when_two_polls_miss_it() -> None:
    one = watch(m="a", other="a")
    assert changes(one, other="a") == NOTHING
    assert one.is_changing
    assert changes(one, other="a") == Changes([], ["m"])
    assert changes(one, other="a") == NOTHING


def test_a_model_that_is_replaced_is_not_removed() -> None:
    """The directory is deleted and copied again; one poll misses it."""
    one = watch(m="a")
    assert changes(one) == NOTHING
    assert changes(one, m="b") == NOTHING
    assert changes(one, m="b") == Changes(["m"], [])


def test_a_change_that_is_undone_is_no_change() -> None:
    one = watch(m="a")
    changes(one, m="b")
    assert [changes(one, m="a") for _ in range(2)] == [NOTHING] * 2


def test_a_model_that_is_loading_has_to_wait() -> None:
    one = watch(m="a")
    changes(one, m="b")
    assert changes(one, ("m",), m="b") == NOTHING
    assert changes(one, m="b") == Changes(["m"], [])
    changes(one)
    assert changes(one, ("m",)) == NOTHING
    assert changes(one) == Changes([], ["m"])


def test_a_failed_load_is_retried_less_and_less_often() -> None:
    one = Watch()
    one.start({"m": files("a")}, ["m"])
    tried = []
    for poll in range(200):
        if changes(one, m="a").load:
            tried.append(poll)
            one.report("m", is_failed=True)
    waits = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert tried[0] == 0
    assert waits[:6] == [2, 4, 8, 16, 32, 32]
    assert max(waits) == MAX_POLLS_BETWEEN_RETRIES


def test_a_change_is_loaded_at_once_and_a_success_ends_the_retries() -> None:
    one = Watch()
    one.start({"m": files("a")}, ["m"])
    changes(one, m="a")
    one.report("m", is_failed=True)
    changes(one, m="b")
    assert changes(one, m="b") == Changes(["m"], [])
    one.report("m", is_failed=False)
    assert [changes(one, m="b") for _ in range(50)] == [NOTHING] * 50
