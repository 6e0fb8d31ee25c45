"""`naiad chat` and `naiad generate`: a language model in the terminal, from a checkpoint or from a
server that already runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from naiad.chat.client import ChatClient, ChatError, Sampling
from naiad.chat.conversation import HELP, Conversation
from naiad.chat.local_server import serve_checkpoint
from naiad.core.install_advice import shell_command
from naiad.tools.command_context import CONTEXT

DEFAULT_URL = "http://127.0.0.1:8000"

_target = click.argument("target", metavar="[CHECKPOINT|URL]", default=DEFAULT_URL)
_model = click.option("--model", default="", help="The model's name, if the server has several.")
_max_tokens = click.option("--max-tokens", type=click.IntRange(1), help="Stop after N tokens.")
_temperature = click.option(
    "--temperature", type=click.FloatRange(0, 2), help="0 always takes the likeliest token."
)
_top_p = click.option("--top-p", type=click.FloatRange(0, 1), help="Nucleus sampling.")
_seed = click.option("--seed", type=int, help="Makes sampling repeatable.")
_api_key = click.option("--api-key", envvar="OPENAI_API_KEY", default="", help="Bearer token.")


@click.command("chat", context_settings=CONTEXT)
@_target
@_model
@click.option("--system", default="", help="Instructions for the model, before the first message.")
@_max_tokens
@_temperature
@_top_p
@_seed
@_api_key
def chat(
    target: str,
    model: str,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    api_key: str,
) -> int:
    """Talk to a language model.

    CHECKPOINT is a folder, a .gguf file, a name of `naiad pull` or a hub id: a server starts for
    it and ends with the chat. URL is a server that already runs; the default is
    http://127.0.0.1:8000. Messages are read line by line, so a file can be piped in.
    """
    sampling = Sampling(max_tokens, temperature, top_p, seed)
    with _connected(target, model, api_key) as (client, name):
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            click.echo(f"{name} at {client.url}. {HELP}")
        conversation = Conversation(
            lambda messages: client.chat(name, messages, sampling), _write, system
        )
        is_ok = conversation.run(_prompted_lines() if is_terminal else iter(sys.stdin))
    return 0 if is_ok else 1


@click.command("generate", context_settings=CONTEXT)
@click.argument("arguments", metavar="[CHECKPOINT|URL] PROMPT|-", nargs=-1, required=True)
@_model
@_max_tokens
@_temperature
@_top_p
@_seed
@_api_key
def generate(
    arguments: tuple[str, ...],
    model: str,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    api_key: str,
) -> int:
    """Let a language model continue PROMPT, as it stands, without a chat template.

    CHECKPOINT or URL is as for `naiad chat`. `-` reads the prompt from standard input.
    """
    if len(arguments) > 2:
        raise click.UsageError("expected at most CHECKPOINT and PROMPT; put the prompt in quotes")
    target, prompt = arguments if len(arguments) == 2 else (DEFAULT_URL, arguments[0])
    text = sys.stdin.read() if prompt == "-" else prompt
    sampling = Sampling(max_tokens, temperature, top_p, seed)
    with _connected(target, model, api_key) as (client, name):
        for piece in client.complete(name, text, sampling):
            _write(piece)
        _write("\n")
    return 0


@contextlib.contextmanager
def _connected(target: str, model: str, api_key: str) -> Iterator[tuple[ChatClient, str]]:
    """Yields a client and the name of the model that it talks to."""
    try:
        if _is_url(target):
            client = ChatClient(target, api_key)
            try:
                yield client, client.choose_model(model)
            except ChatError as error:
                if target == DEFAULT_URL and "cannot connect" in str(error):
                    command = shell_command()
                    raise ChatError(
                        f"no server responds at {DEFAULT_URL}; start one with `{command} serve "
                        f"--model CHECKPOINT`, or name a checkpoint: `{command} chat CHECKPOINT`"
                    ) from error
                raise
            return
        click.echo(f"Loading {target} ...", err=True)
        with serve_checkpoint(target) as url:
            client = ChatClient(url, api_key)
            yield client, client.choose_model(model)
    except ChatError as error:
        raise click.ClickException(str(error)) from error


def _is_url(target: str) -> bool:
    """Checkpoints may be called anything, so what exists on disk is never an address."""
    if "://" in target:
        return True
    host, colon, port = target.rpartition(":")
    return bool(colon and host) and port.isdigit() and not Path(target).exists()


def _prompted_lines() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() edits lines once it is imported)
    while True:
        try:
            yield input("> ")
        except EOFError:
            _write("\n")
            return
        except KeyboardInterrupt:
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
