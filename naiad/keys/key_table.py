"""The keys of the running server: which key a client's credential is.

In:  the documents that were read from the key file, and the texts of `--api-key`. Out: a Finding
     for a credential.
Rule: every change increases `generation`. Whoever keeps a Finding compares the generation and asks
      again, so that a revoked key fails its next request.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from naiad.core.identity import Identity
from naiad.keys.api_class import KEYS, SCOPES
from naiad.keys.certificate import CertificateNames
from naiad.keys.key import ApiKey, KeyDocument
from naiad.keys.secret import PAGE_HEADER, Credential, hash_secret
from naiad.keys.session import NewSession, Session, Sessions

MISSING = "an API key is required: send the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
NO_PAGE_SECRET = (
    f"a request that changes something needs more than the cookie of a session: the header "
    f"'{PAGE_HEADER}' with the secret that the page got when it signed in; sign in again"
)
_NO_HASH = b"\0" * 32


class Finding(msgspec.Struct, frozen=True):
    identity: Identity | None = None
    reason: str = ""
    """Why there is no identity. It names the key only if the client knows the key's secret."""
    key_id: str = ""
    """The key, if the client knows its secret."""
    valid_until_s: float | None = None
    """When the same credential must be looked up again, on the clock of time.time()."""
    user: int | None = None
    """The user of this machine to whom the session belongs, if it belongs to one."""


class _Record(msgspec.Struct, frozen=True):
    key: ApiKey
    identity: Identity
    hash: bytes
    previous_hash: bytes
    previous_until_s: float


class KeyTable:
    def __init__(
        self, static_keys: Iterable[str] = (), clock_s: Callable[[], float] = time.time
    ) -> None:
        """`static_keys` are the texts of `--api-key`; they may do everything except manage keys."""
        self.generation = 1
        self._clock_s = clock_s
        self._records: dict[str, _Record] = {}
        self._subjects: dict[str, _Record] = {}
        """Keyed by the names of clients' certificates."""
        self._sessions = Sessions(clock_s)
        self.document = KeyDocument()
        """What was read from the key file."""
        self.on_change: Callable[[], None] | None = None
        """Called after every change."""
        self.find_token: Callable[[Credential], Finding] | None = None
        """Finds the sender of a signed token; None where nobody issues tokens."""
        scopes = frozenset(SCOPES) - {KEYS}
        self._static = [
            (hash_secret(text), Identity(f"api-key-{number}", "--api-key", scopes=scopes))
            for number, text in enumerate(static_keys, 1)
        ]

    def __len__(self) -> int:
        return len(self._records) + len(self._static)

    def replace(self, document: KeyDocument) -> None:
        self.document = document
        self._records = {key.id: _record(key) for key in document.keys}
        # A revoked key only keeps a subject that no other key has.
        ordered = sorted(document.keys, key=lambda key: key.revoked_at is None)
        self._subjects = {
            subject: self._records[key.id] for key in ordered for subject in key.client_subjects
        }
        self.change()

    def change(self) -> None:
        """Every Finding that somebody keeps must be asked for again."""
        self.generation += 1
        if self.on_change is not None:
            self.on_change()

    def identities(self) -> list[Identity]:
        """Returns the identities of all keys, whether they are valid or not."""
        return [record.identity for record in self._records.values()] + [
            identity for _, identity in self._static
        ]

    def identity(self, key_id: str) -> Identity | None:
        """Returns None if no key of the file or of the command line has this id."""
        record = self._records.get(key_id)
        if record is not None:
            return record.identity
        return next((each for _, each in self._static if each.key_id == key_id), None)

    def find(self, credential: Credential) -> Finding:
        """Compares in constant time, also for ids that do not exist."""
        if credential.session_hash:
            return self._find_session(credential)
        if credential.certificate is not None:
            return self._find_certificate(credential.certificate)
        for hash, identity in self._static:
            if hmac.compare_digest(hash, credential.token_hash):
                return Finding(identity, key_id=identity.key_id)
        if credential.signed_token and self.find_token is not None:
            return self.find_token(credential)
        record = self._records.get(credential.key_id)
        presented = credential.secret_hash or _NO_HASH
        is_current = hmac.compare_digest(_NO_HASH if record is None else record.hash, presented)
        is_previous = hmac.compare_digest(
            _NO_HASH if record is None else record.previous_hash, presented
        )
        if record is None or not credential.secret_hash or not (is_current or is_previous):
            return Finding(reason="the API key is not valid")
        return self._judge(record, is_current=is_current)

    def _find_certificate(self, certificate: CertificateNames) -> Finding:
        """The connection has verified the certificate when it was opened, but may outlive it."""
        for name in certificate.names:
            record = self._subjects.get(name)
            if record is None:
                continue
            if self._clock_s() >= certificate.end_s:
                return Finding(reason=f"the client certificate '{name}' has expired")
            finding = self._judge(record, is_current=True)
            if finding.identity is None:
                return finding
            until_s = min(certificate.end_s, finding.valid_until_s or certificate.end_s)
            return msgspec.structs.replace(finding, valid_until_s=until_s)
        shown = ", ".join(f"'{name}'" for name in certificate.names)
        return Finding(reason=f"no API key is for the client certificate {shown}; {MISSING}")

    def open_session(
        self, credential: Credential, key_id: str, user: int | None = None
    ) -> NewSession:
        """Opens a session that stands for the key. The caller has found the key."""
        self.generation += 1  # it may end an older one; only this process knows sessions
        return self._sessions.open(credential, key_id, user)

    def close_session(self, session_hash: bytes) -> None:
        self._sessions.close(session_hash)
        self.change()

    def _find_session(self, credential: Credential) -> Finding:
        session: Session | None = self._sessions.find(credential.session_hash)
        if session is None:
            return Finding(reason="the session has ended; sign in again")
        if credential.page_hash and not hmac.compare_digest(
            credential.page_hash, session.page_hash
        ):
            return Finding(reason=NO_PAGE_SECRET)
        finding = self.find(session.credential)
        if finding.identity is None:
            return finding
        until_s = session.end_s
        if finding.valid_until_s is not None:
            until_s = min(until_s, finding.valid_until_s)
        return msgspec.structs.replace(finding, valid_until_s=until_s, user=session.user)

    def _judge(self, record: _Record, *, is_current: bool) -> Finding:
        key, now_s = record.key, self._clock_s()

        def refused(reason: str) -> Finding:
            return Finding(reason=f"the API key '{key.id}' {reason}", key_id=key.id)

        if key.revoked_at is not None:
            return refused("was revoked")
        until_s = _seconds(key.expires_at)
        if until_s is not None and now_s >= until_s:
            return refused("has expired")
        if not is_current:
            if now_s >= record.previous_until_s:
                return refused("has a new secret")
            until_s = min(record.previous_until_s, until_s or record.previous_until_s)
        return Finding(record.identity, key_id=key.id, valid_until_s=until_s)


def _record(key: ApiKey) -> _Record:
    previous = key.previous
    return _Record(
        key,
        key.identity(),
        bytes.fromhex(key.hash),
        _NO_HASH if previous is None else bytes.fromhex(previous.hash),
        0.0 if previous is None else previous.expires_at.timestamp(),
    )


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()
