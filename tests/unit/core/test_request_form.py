"""Forms that an ensemble's requests share."""

from __future__ import annotations

from naiad.core.request import RequestForm


def test_what_is_known_of_a_step_ends_with_the_step() -> None:
    form, before, after = RequestForm(), object(), object()
    known = form.step(0, before)
    assert form.step(0, before) is known
    assert form.step(1, before) is not known
    assert form.step(0, after) is not known, "the ensemble was loaded again"
    assert form.steps is not None
    assert len(form.steps) == 2, "of steps that are gone nothing is kept"
