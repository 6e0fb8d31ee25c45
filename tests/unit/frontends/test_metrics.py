import pytest

from naiad import log
from naiad.errors import NaiadError
from naiad.frontends.metrics import MetricsFrontend, MetricsResponse, respond
from naiad.keys.api_class import METRICS
from naiad.transport.http1.head import parse_head
from naiad.transport.http1.limits import Http1Limits
from tests.fakes.keys import KeyRing


def page() -> bytes:
    return b"# the page\n"


@pytest.mark.parametrize("path", [b"/metrics", b"/metrics/"])
def test_the_page(path: bytes) -> None:
    assert respond("GET", path, page) == MetricsResponse(
        200, "text/plain; charset=utf-8", b"# the page\n"
    )


@pytest.mark.parametrize("path", [b"/", b"/foo", b"/metrics/x", b"/Metrics", b""])
def test_other_paths_are_empty_pages(path: bytes) -> None:
    assert respond("GET", path, page) == MetricsResponse(200, "text/plain; charset=utf-8", b"")


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", [b"/metrics", b"/foo"])
def test_other_methods(method: str, path: bytes) -> None:
    assert respond(method, path, page) == MetricsResponse(
        405, "text/plain", b'{"error":"Method Not Allowed"}'
    )


def test_a_page_that_fails_is_a_500_and_a_line_in_the_log(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def broken() -> bytes:
        raise ZeroDivisionError("secret detail")

    assert respond("GET", b"/metrics", broken) == MetricsResponse(
        500, "text/plain; charset=utf-8", b""
    )
    assert log.flush(10)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_metrics_need_a_key_only_where_they_are_guarded() -> None:
    ring = KeyRing()
    head = parse_head(b"GET /metrics HTTP/1.1\r\n\r\n", Http1Limits())
    assert MetricsFrontend(bytes, ring.guard()).route(head).gate is None
    guarded = MetricsFrontend(bytes, ring.guard(guarded_apis=frozenset((METRICS,)))).route(head)
    assert guarded.gate is not None
    assert isinstance(guarded.gate.enter(), NaiadError)
