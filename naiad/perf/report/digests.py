"""Chooses the digest of a run, which reduces each response to the part that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from naiad.perf.data import openai_payload, triton_llm
from naiad.perf.options import PerfOptions


def make_digest_for(options: PerfOptions) -> Callable[[Any], Any] | None:
    """Returns None if responses are not recorded."""
    has_export = bool(options.profile_export_file)
    if not options.is_llm:
        return (lambda response: response) if has_export else None
    keeps_text = bool(options.tokenizer)
    if options.service_kind == "openai":
        return openai_payload.make_digest(keeps_text=keeps_text, keeps_raw=has_export)
    if options.is_grpc:
        return triton_llm.make_message_digest(keeps_text=keeps_text, keeps_raw=has_export)
    return triton_llm.make_generate_digest(keeps_text=keeps_text, keeps_raw=has_export)
