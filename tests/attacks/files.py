"""Forms, files and long flat objects: what people send to /infer besides Triton's own form."""

from __future__ import annotations

from tests.attacks.attack import MIB, attack
from tests.attacks.target import Target

_NUMBERS = "/v2/models/identity_fp32/infer"
_TEXTS = "/v2/models/identity_bytes/infer"
_BUDGET = 3 * 60 * MIB + 64 * MIB
_FORM = {"Content-Type": "multipart/form-data; boundary=b"}
_PART = b'--b\r\nContent-Disposition: form-data; name="INPUT0"\r\n\r\n'


@attack(_BUDGET)
def large_form(target: Target) -> None:
    """50 MB in one part, full of what may be a boundary."""
    body = _PART + b"\r\n--a" * (10 * MIB) + b"\r\n--b--\r\n"
    status, reply = target.post(_TEXTS, body, _FORM)
    assert status in (200, 400, 500), (status, reply[:200])


@attack(_BUDGET)
def many_parts(target: Target) -> None:
    body = (_PART + b"a\r\n") * MIB
    status, reply = target.post(_TEXTS, body[: 50 * MIB], _FORM)
    assert (status, b"more than 1024 parts" in reply) == (400, True), (status, reply[:200])


@attack(_BUDGET)
def large_file(target: Target) -> None:
    status, reply = target.post(_TEXTS, b"a" * (50 * MIB), {"Content-Type": "image/png"})
    assert status in (200, 400, 500), (status, reply[:200])


@attack(_BUDGET)
def long_flat_list(target: Target) -> None:
    """Fifty megabytes of nested lists that do not fit."""
    body = b'{"INPUT0":[' + b"[0.5,1]," * (6 * MIB) + b"[1]]}"
    status, reply = target.post(_NUMBERS, body)
    assert (status, b"different lengths" in reply) == (400, True), (status, reply[:200])


@attack(_BUDGET)
def long_flat_list_that_fits(target: Target) -> None:
    body = b'{"INPUT0":[' + b"0.5," * (8 * MIB) + b"1]}"
    status, reply = target.post(_NUMBERS, body)
    assert status in (200, 400), (status, reply[:200])
