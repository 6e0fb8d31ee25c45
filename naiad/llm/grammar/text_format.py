"""Expressions for the `format` keyword of a JSON schema's strings. Each is narrower than its
standard, so what it matches is always valid."""

from __future__ import annotations

_YEAR = "[12][0-9]{3}"
_DATE = (
    f"{_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME = (
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_CLOCK = "T([0-9]{1,3}H([0-9]{1,2}M([0-9]{1,2}S)?)?|[0-9]{1,3}M([0-9]{1,2}S)?|[0-9]{1,3}S)"
_DAYS = "([0-9]{1,4}Y([0-9]{1,2}M([0-9]{1,2}D)?)?|[0-9]{1,3}M([0-9]{1,2}D)?|[0-9]{1,4}D)"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(\\.{_BYTE}){{3}}"
_GROUP = "[0-9a-f]{1,4}"
_IPV6 = f"(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,6}}:{_GROUP}|::({_GROUP})?)"
_LABEL = "[A-Za-z0-9]{1,20}(-[A-Za-z0-9]{1,20}){0,2}"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,3}}"
_DOMAIN = f"{_LABEL}(\\.{_LABEL}){{0,2}}\\.[A-Za-z]{{2,10}}"
_UNIT = "([A-Za-z0-9._~-]|%[0-9A-F]{2})"
_PATH = f"(/{_UNIT}*)*(\\?({_UNIT}|[=&])*)?(#{_UNIT}*)?"
_URI = f"[a-z][a-z0-9]{{1,9}}://{_HOST}(:[1-9][0-9]{{0,3}})?{_PATH}"
_POINTER = "(/([^/~]|~[01])*)*"

FORMATS = {
    "email": f"[A-Za-z0-9]{{1,20}}([._+-][A-Za-z0-9]{{1,20}}){{0,2}}@{_DOMAIN}",
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]{{1,4}}W|{_DAYS}({_CLOCK})?|{_CLOCK})",
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "hostname": _HOST,
    "uri": _URI,
    "uri-reference": f"({_URI}|/{_UNIT}*{_PATH})",
    "uri-template": f"{_URI}(/\\{{[a-z]{{1,20}}\\}}){{0,4}}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]{{0,3}})(#|{_POINTER})",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
