"""`GET /` for a person with a browser: what this server is, and where to go on.

Rule: the page is the same for everybody and names no model, so that it needs no restriction. Other
      clients get the 404 that Triton sends.
"""

from __future__ import annotations

from naiad import __version__
from naiad.frontends.http.routes import Names, RouteBuilder
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

HTML_TYPE = b"Content-Type: text/html; charset=utf-8\r\n"
_CONSOLE = """<li><a href="console">/console</a>: deploy, try and watch models</li>
  """
_TEMPLATE = f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Naiad</title>
<style>
  :root {{ color-scheme: light dark; }}
  body {{
    font: 16px/1.5 system-ui, sans-serif;
    max-width: 40rem; margin: 3rem auto; padding: 0 1rem;
  }}
  code {{ font-family: ui-monospace, monospace; }}
</style>
<h1>Naiad {__version__}</h1>
<p>This is an inference server. Programs talk to it; here is what a browser can open:</p>
<ul>
  CONSOLE<li><a href="v2">/v2</a>: the server and its extensions</li>
  <li><a href="v2/models/stats">/v2/models/stats</a>: statistics of the models that serve</li>
  <li><a href="v1/models">/v1/models</a>: the language models, as OpenAI's API lists them</li>
</ul>
<p>A request for a model is a <code>POST</code> to <code>/v2/models/NAME/infer</code>;
<code>/v2/models/NAME</code> shows the inputs that it wants.</p>
</html>
"""


def welcome(*, has_console: bool) -> RouteBuilder:
    page = _TEMPLATE.replace("CONSOLE", _CONSOLE if has_console else "").encode()

    def build(head: Head, _names: Names) -> Route:
        if b"text/html" in head.headers.get(b"accept", b""):
            return Route(lambda exchange: exchange.respond(200, HTML_TYPE, page))
        return Route(_not_found)

    return build


def _not_found(exchange: Exchange) -> None:
    exchange.respond(404, JSON_TYPE, b'{"error":"Not Found"}')
