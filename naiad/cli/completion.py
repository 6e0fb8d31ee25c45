"""The command `naiad completion SHELL`: prints the script that completes our commands.

click writes the script; a shell calls our command with a variable set to ask for completions.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from naiad.tools.command_context import CONTEXT

PROGRAMS = ("naiad", "tritonserver", "perf_analyzer", "model-analyzer")


@click.command("completion", context_settings=CONTEXT)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print a script that completes commands and options in a shell.

    bash: echo 'eval "$(naiad completion bash)"' >> ~/.bashrc

    zsh:  echo 'eval "$(naiad completion zsh)"' >> ~/.zshrc

    fish: naiad completion fish > ~/.config/fish/completions/naiad.fish
    """
    for program in PROGRAMS:
        click.echo(completion_script(shell, program))
    return 0


def completion_script(shell: str, program: str) -> str:
    completion = get_completion_class(shell)
    assert completion is not None, "click has a class for each choice"
    # click derives the same name for the variable when the program is called.
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    return completion(click.Command(program), {}, program, variable).source()
