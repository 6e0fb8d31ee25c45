import pytest

from naiad import log
from naiad.frontends.metrics import MetricsResponse, respond


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
