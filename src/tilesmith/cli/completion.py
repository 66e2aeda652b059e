"""`tilesmith completion`: a script by which a shell completes commands, options and values."""

import click
from click.shell_completion import get_completion_class

from tilesmith.cli import UnusableError

_PROGRAM = "tilesmith"
_VARIABLE = "_TILESMITH_COMPLETE"  # by which click knows that a shell asks


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script by which a shell completes commands, options and values.

    \b
    bash:  tilesmith completion bash > ~/.local/share/bash-completion/completions/tilesmith
    zsh:   tilesmith completion zsh > a file _tilesmith in a folder of $fpath
    fish:  tilesmith completion fish > ~/.config/fish/completions/tilesmith.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise UnusableError(f"there is no completion for {shell}")
    click.echo(kind(click.get_current_context().find_root().command, {}, _PROGRAM, _VARIABLE).source())
