"""Turns requests that end, and refusals, into lines of the audit log."""

from __future__ import annotations

import time
from collections.abc import Callable

from naiad.errors import NaiadError
from naiad.keys.account import EntranceFacts, MeteredAdmission
from naiad.keys.audit import AuditLine, AuditLog, now_text


class AuditTrail:
    def __init__(self, log: AuditLog, clock_s: Callable[[], float] = time.time) -> None:
        self._log = log
        self._clock_s = clock_s

    def on_end(self, admission: MeteredAdmission, status: int) -> None:
        now_s = self._clock_s()
        self._log.write(
            AuditLine(
                now_text(now_s),
                admission.identity.key_id,
                admission.address,
                admission.api,
                admission.model_name,
                str(status),
                admission.num_prompt_tokens,
                admission.num_output_tokens,
                round((now_s - admission.start_s) * 1000, 3),
                admission.request_id,
            )
        )

    def on_refused(self, key_id: str, facts: EntranceFacts, error: NaiadError) -> None:
        self._log.write(
            AuditLine(
                now_text(self._clock_s()),
                key_id,
                facts.address,
                facts.api,
                facts.model_name,
                error.code,
                0,
                0,
                0.0,
                facts.request_id,
            )
        )
