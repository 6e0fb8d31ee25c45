import gzip

import pytest

from naiad import log
from naiad.errors import NaiadError
from naiad.frontends.metrics import MetricsFrontend, MetricsResponse, respond
from naiad.keys.api_class import METRICS
from naiad.transport.http1.head import parse_head
from naiad.transport.http1.limits import Http1Limits
from tests.fakes.keys import KeyRing
from tests.unit.transport.http1.http1_rig import Rig


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


@pytest.mark.parametrize(
    ("accept", "size", "encoding"),
    [
        ("gzip", 5000, "gzip"),
        ("deflate;q=0.5, gzip;q=1", 5000, "gzip"),
        ("gzip;q=0", 5000, None),
        ("", 5000, None),
        ("gzip", 500, None),
        ("gzip", 2 << 20, None),
    ],
)
async def test_pages_are_compressed_for_scrapers_that_accept_it(
    accept: str, size: int, encoding: str | None
) -> None:
    rig = Rig(handle=MetricsFrontend(lambda: b"x" * size)._handle)
    rig.feed(f"GET /metrics HTTP/1.1\r\nAccept-Encoding: {accept}\r\n\r\n".encode())
    head, _, body = (await rig.written()).partition(b"\r\n\r\n")
    assert (b"Content-Encoding: gzip" in head) == (encoding == "gzip")
    assert (gzip.decompress(body) if encoding else body) == b"x" * size


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
