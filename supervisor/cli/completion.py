"""supervise completion: what a shell needs to complete the commands."""

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what makes SHELL complete the commands.

    \b
    bash: eval "$(supervise completion bash)"           in ~/.bashrc
    zsh:  eval "$(supervise completion zsh)"            in ~/.zshrc
    fish: supervise completion fish > ~/.config/fish/completions/supervise.fish
    """
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click ships all three
    root = click.get_current_context().find_root()
    made = found(root.command, {}, "supervise", "_SUPERVISE_COMPLETE")
    # Not made.source(), which starts a bash to look at its version.
    click.echo(made.source_template % made.source_vars())
