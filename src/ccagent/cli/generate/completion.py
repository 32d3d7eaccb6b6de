"""Completion of commands, options and files in bash, zsh and fish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.shell_completion import ShellComplete, get_completion_class

if TYPE_CHECKING:
    import click

FILES = {
    "bash": "bash-completion/completions/ccagent",
    "zsh": "zsh/site-functions/_ccagent",
    "fish": "fish/vendor_completions.d/ccagent.fish",
}
"""Where each shell looks for its script, below /usr/share."""


def script(program: click.Group, shell: str) -> str:
    """Write the script of a shell, which asks `ccagent` itself what there is."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"{shell!r} is not one of {', '.join(FILES)}")
    shell_completion = kind(program, {}, "ccagent", "_CCAGENT_COMPLETE")
    # Bash's own source() would run bash to learn its version.
    text = ShellComplete.source(shell_completion)
    if shell != "zsh":
        return text
    # Click's last lines complete at the first call of an autoloaded file, and not at the second.
    definition, _, _ = text.partition("\nif [[ $zsh_eval_context")
    return f'{definition}\n{shell_completion.func_name} "$@"\n'
