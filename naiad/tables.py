"""The tables that Triton prints at start.

In:  rows of strings, and the settings. Out: text for log.table.
Rule: rows and layout are exactly Triton's, because scripts search the log for them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence

from naiad.log.line import escape_control
from naiad.settings import Settings

MIN_LAST_COLUMN = 20


def render_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], max_columns: int = 0
) -> str:
    """Renders a table. A cell may have several lines; other control characters are escaped. The
    last column is wrapped so that the table is no wider than `max_columns`, if that is given."""
    split = [[_cell_lines(cell) for cell in row] for row in rows]
    widths = _widths(headings, split)
    excess = sum(widths) + 3 * len(widths) + 1 - max_columns
    if max_columns and excess > 0:
        width = max(widths[-1] - excess, MIN_LAST_COLUMN)
        for row in split:
            row[-1] = [part for line in row[-1] for part in textwrap.wrap(line, width) or [""]]
        widths = _widths(headings, split)
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+\n"
    lines = [border, _line(headings, widths), border]
    for row in split:
        height = max(map(len, row))
        lines += [
            _line([cell[number] if number < len(cell) else "" for cell in row], widths)
            for number in range(height)
        ]
    return "".join([*lines, border])


def repository_agent_table(rows: Iterable[tuple[str, str]] = ()) -> str:
    return render_table(["Repository Agent", "Path"], rows)


def backend_table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Renders rows of (backend, path, config). `backend_config_text` makes the config."""
    return render_table(["Backend", "Path", "Config"], rows)


def model_table(rows: Iterable[tuple[str, str, str]], max_columns: int = 0) -> str:
    """Renders rows of (model, version, status). The version is '-' if the model has none."""
    return render_table(["Model", "Version", "Status"], rows, max_columns)


def option_table(
    settings: Settings, server_version: str, extensions: Sequence[str], max_columns: int = 0
) -> str:
    rows = [
        ("server_id", settings.id),
        ("server_version", server_version),
        ("server_extensions", " ".join(extensions)),
    ]
    rows += [
        (f"model_repository_path[{index}]", path)
        for index, path in enumerate(settings.model_repository)
    ]
    rows.append(("model_control_mode", f"MODE_{settings.model_control_mode.upper()}"))
    rows += [
        (f"startup_models_{index}", model)
        for index, model in enumerate(sorted(set(settings.load_model)))
    ]
    rows.append(("strict_model_config", _flag(settings.disable_auto_complete_config)))
    rows.append(("model_config_name", settings.model_config_name))
    rows.append(("rate_limit", "OFF" if settings.rate_limit == "off" else "EXEC_COUNT"))
    limits = sorted(settings.rate_limit_resource, key=lambda limit: (limit.device, limit.name))
    rows += [
        (
            f"rate_limit_resource[{index}]",
            f'{{"name":"{limit.name}", "count":{limit.count} "device":{limit.device}}}',
        )
        for index, limit in enumerate(limits)
    ]
    rows.append(("pinned_memory_pool_byte_size", str(settings.pinned_memory_pool_byte_size)))
    pools = {pool.device: pool.num_bytes for pool in settings.cuda_memory_pool_byte_size}
    rows += [
        (f"cuda_memory_pool_byte_size{{{device}}}", str(size))
        for device, size in sorted(pools.items())
    ]
    rows.append(
        ("min_supported_compute_capability", f"{settings.min_supported_compute_capability:.1f}")
    )
    rows.append(("strict_readiness", _flag(settings.strict_readiness)))
    rows.append(("exit_timeout", str(settings.exit_timeout_secs)))
    rows.append(("cache_enabled", _flag(bool(settings.cache_config))))
    return render_table(["Option", "Value"], rows, max_columns)


def backend_config_text(settings: Settings, backend: str) -> str:
    """Returns a backend's command-line settings as JSON, as Triton's table shows them."""
    cmdline = {
        "auto-complete-config": "false" if settings.disable_auto_complete_config else "true",
        "backend-directory": settings.backend_directory,
        "default-max-batch-size": "4",
        "min-compute-capability": f"{settings.min_supported_compute_capability:f}",
    }
    return json.dumps(
        {"cmdline": dict(sorted((cmdline | settings.backend_settings(backend)).items()))},
        separators=(",", ":"),
    )


def _widths(headings: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [
        max([len(heading), *(len(line) for row in rows for line in row[column])])
        for column, heading in enumerate(headings)
    ]


def _cell_lines(cell: str) -> list[str]:
    return [escape_control(line) for line in cell.rstrip("\n").split("\n")]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [f" {cell:<{width}} " for cell, width in zip(cells, widths, strict=True)]
    return "|" + "|".join(padded) + "|\n"


def _flag(is_set: bool) -> str:
    return "1" if is_set else "0"
