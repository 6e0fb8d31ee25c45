"""Prepares a run against an OpenAI-style server.

Such a server has no metadata to ask for. Requests are prompts or payloads, sent as JSON over HTTP.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from naiad.perf.channels.http_request import request_bytes
from naiad.perf.data.data_file import load_json
from naiad.perf.data.model_facts import ModelFacts
from naiad.perf.data.openai_payload import payload
from naiad.perf.data.prompt_choice import PromptChoice, choose_prompts
from naiad.perf.load.traffic import Traffic
from naiad.perf.measure.token_metrics import TokenCounting
from naiad.perf.measure.window import WindowPlan
from naiad.perf.options import PerfOptions
from naiad.perf.prepare import LoadTarget, load_options, server_address, tls_files
from naiad.perf.report.digests import make_digest_for
from naiad.settings.option import OptionError


async def prepare_openai(options: PerfOptions) -> LoadTarget:
    """Prepares a run against an OpenAI-style server. Raises OptionError."""
    address = server_address(options)
    path = f"{address.path}/{options.endpoint.lstrip('/')}"
    prompts = None if _payload_files(options) else choose_prompts(options)
    payloads = _payloads(options, prompts)
    prepared = [
        request_bytes(
            address,
            "POST",
            path,
            json.dumps(document, ensure_ascii=False).encode(),
            headers=options.header,
        )
        for document in payloads
    ]
    is_llm = options.is_llm
    has_export = bool(options.profile_export_file)
    counting = prompts.counting if prompts is not None else TokenCounting()
    protocol = "sse" if options.streaming else "http"
    return LoadTarget(
        Traffic(
            protocol,
            address,
            tls_files(options, address),
            prepared=prepared,
            should_keep_body=is_llm or has_export,
        ),
        load_options(options, has_details=is_llm),
        WindowPlan(1, False, is_llm, options.percentile, dict(options.goodput), counting),
        ModelFacts(options.model, has_statistics=False),
        digest=make_digest_for(options),
        inputs=list(payloads),
        offsets_s=prompts.offsets_s if prompts is not None else [],
    )


def _payload_files(options: PerfOptions) -> list[Path]:
    return [Path(text) for text in options.input_data if text not in ("zero", "random")]


def _payloads(options: PerfOptions, prompts: PromptChoice | None) -> list[dict[str, Any]]:
    if prompts is not None:
        return [
            payload(
                options.endpoint,
                options.model,
                prompt,
                is_streaming=options.streaming,
                extra=prompts.extra,
            )
            for prompt in prompts.prompts
        ]
    payloads: list[dict[str, Any]] = []
    for path in _payload_files(options):
        for number, entry in enumerate(load_json(path)["data"]):
            value = entry.get("payload") if isinstance(entry, dict) else None
            if not isinstance(value, list) or not value or not isinstance(value[0], dict):
                raise OptionError(f'{path}: step {number}: expected {{"payload": [{{...}}]}}')
            payloads.append(value[0])
    return payloads
