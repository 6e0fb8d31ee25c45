"""The API classes: every HTTP route and every RPC belongs to exactly one.

A class decides which scope a key needs. Triton's groups (`--http-restricted-api`,
`--grpc-restricted-protocol`) are classes too.
Rule: an endpoint whose table has an entry without a class does not start (`check_class`).
"""

from __future__ import annotations

HEALTH = "health"
MODEL_READINESS = "model-readiness"
"""Whether one model is ready: to Triton a part of health. It names a model, so with keys it is a
part of the metadata."""
METADATA = "metadata"
INFERENCE = "inference"
SHARED_MEMORY = "shared-memory"
MODEL_CONFIG = "model-config"
MODEL_REPOSITORY = "model-repository"
STATISTICS = "statistics"
TRACE = "trace"
LOGGING = "logging"
KEYS = "keys"
METRICS = "metrics"
PAGE = "page"
"""A page that is the same for everybody and names no model. It is always open."""
UNCLASSIFIED = "unclassified"
"""Paths that do not exist, and descriptions of the protocol. They need a valid key of any scope, so
that nobody without a key learns what there is."""

SCOPES = (
    INFERENCE, METADATA, MODEL_CONFIG, STATISTICS, MODEL_REPOSITORY, SHARED_MEMORY, TRACE, LOGGING,
    KEYS, HEALTH, METRICS,
)  # fmt: skip
"""What a key may be given."""
DEFAULT_SCOPES = (INFERENCE, METADATA, MODEL_CONFIG, STATISTICS)
"""What a key has unless its creator says otherwise: to use its models and to read about them."""
OPEN_BY_DEFAULT = frozenset((HEALTH,))
"""Probes rarely have keys; `--guarded-api` closes this class too. The metrics port is open in the
same way; the metrics page of the HTTP port is not."""
API_CLASSES = frozenset((*SCOPES, MODEL_READINESS, PAGE, UNCLASSIFIED))


def scope_of(api: str) -> str:
    """The scope that a key needs for a class."""
    return METADATA if api == MODEL_READINESS else api


def group_of(api: str) -> str:
    """Triton's group of a class."""
    return HEALTH if api == MODEL_READINESS else api


def check_class(api: str, entry: str) -> None:
    """Raises ValueError: an entry without a class is a mistake of the programmer."""
    if api not in API_CLASSES:
        raise ValueError(
            f"{entry} has the API class '{api}', expected one of {', '.join(sorted(API_CLASSES))}"
        )
