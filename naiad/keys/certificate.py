"""The names in a client's certificate, by which it can stand for a key.

In:  the certificate as Python's ssl module shows it, or the text that an administrator wrote. Out:
     names in one canonical format: the subject as RFC 4514 writes it (`CN=alice,O=Example`), or
     `URI:...` and `DNS:...` for the alternative names.
Rule: names are compared as canonical texts only. A certificate that the TLS handshake has not
      verified never gets here.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from asyncio import BaseTransport
from typing import Any, TypeAlias

import msgspec

from naiad.errors import NaiadError, invalid_arg

MAX_NAME_CHARS = 2000
_SHORT = {
    "commonName": "CN", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU", "countryName": "C", "streetAddress": "STREET",
    "domainComponent": "DC", "userId": "UID",
}  # fmt: skip
_LONG = {name.upper(): short for name, short in _SHORT.items()}
_SPECIAL = frozenset(',+"\\<>;')
_ALTERNATIVE = ("URI", "DNS")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)+")

Attribute: TypeAlias = tuple[str, str]


class CertificateNames(msgspec.Struct, frozen=True):
    names: tuple[str, ...]
    """The subject first, then URIs, then DNS names."""
    end_s: float
    """When the certificate expires, on the clock of time.time()."""


def peer_certificate(peer: BaseTransport | None) -> Any:
    """Returns the client's certificate, in the ssl module's format; None without one."""
    return None if peer is None else peer.get_extra_info("peercert") or None


def read_names(certificate: Any) -> CertificateNames:
    subject = [tuple(map(_shortened, part)) for part in certificate.get("subject", ())]
    alternative = certificate.get("subjectAltName", ())
    names = [_render(list(reversed(subject)))] if subject else []
    for wanted in _ALTERNATIVE:
        for kind, value in alternative:
            if kind == wanted:
                with contextlib.suppress(NaiadError):  # no key can have such a name
                    names.append(canonical_name(f"{kind}:{value}"))
    return CertificateNames(tuple(names), ssl.cert_time_to_seconds(certificate["notAfter"]))


def canonical_name(text: str) -> str:
    """Raises NaiadError for a text that is not a name."""
    kind, _, value = text.partition(":")
    if len(text) > MAX_NAME_CHARS or not text.isprintable():
        raise invalid_arg(f"expected at most {MAX_NAME_CHARS} printable characters")
    if kind.upper() in _ALTERNATIVE and value:
        return f"DNS:{value.lower()}" if kind.upper() == "DNS" else f"URI:{value}"
    return _render(_Reader(text).parts())


def _shortened(attribute: Attribute) -> Attribute:
    name, value = attribute
    return _SHORT.get(name, name), value


def _render(parts: list[tuple[Attribute, ...]]) -> str:
    return ",".join(
        "+".join(sorted(f"{name.upper()}={_escape(value)}" for name, value in part))
        for part in parts
    )


def _escape(value: str) -> str:
    escaped = "".join(f"\\{char}" if char in _SPECIAL else char for char in value)
    if escaped[:1] in ("#", " "):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(value) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


class _Reader:
    """Reads a distinguished name of RFC 4514; spaces around commas are allowed."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset = 0

    def parts(self) -> list[tuple[Attribute, ...]]:
        parts: list[list[Attribute]] = [[]]
        while True:
            parts[-1].append(self._attribute())
            if self._offset == len(self._text):
                return [tuple(part) for part in parts]
            if self._text[self._offset] != "+":
                parts.append([])
            self._offset += 1

    def _attribute(self) -> Attribute:
        name, separator, _ = self._text[self._offset :].partition("=")
        if not separator or _TYPE.fullmatch(name.strip()) is None:
            raise invalid_arg(
                f"'{self._text}' is not a subject such as 'CN=alice,O=Example', nor 'URI:...' or "
                "'DNS:...'"
            )
        self._offset += len(name) + 1
        short = _LONG.get(name.strip().upper(), name.strip())
        return short, self._value()

    def _value(self) -> str:
        """Reads up to the next separator that is not escaped."""
        value = bytearray()
        num_kept = 0
        """Spaces beyond this are not part of the value."""
        text = self._text
        while self._offset < len(text) and text[self._offset] not in ",+;":
            char = text[self._offset]
            self._offset += 1
            if char == "\\":
                value += self._escaped()
                num_kept = len(value)
            elif char != " " or value:
                value += char.encode()
                num_kept = num_kept if char == " " else len(value)
        try:
            return value[:num_kept].decode()
        except UnicodeDecodeError:
            raise invalid_arg(f"'{text}' has an escape that is not UTF-8") from None

    def _escaped(self) -> bytes:
        text, offset = self._text, self._offset
        pair = text[offset : offset + 2]
        if re.fullmatch("[0-9A-Fa-f]{2}", pair):
            self._offset += 2
            return bytes.fromhex(pair)
        if offset == len(text):
            raise invalid_arg(f"'{text}' ends with a backslash")
        self._offset += 1
        return text[offset].encode()
