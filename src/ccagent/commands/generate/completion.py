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
"""Path of each shell's script, below /usr/share."""


def script(program: click.Group, shell: str) -> str:
    """Return the script of a shell. It runs `ccagent` to find completions."""
    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"{shell!r} is not one of {', '.join(FILES)}")
    shell_completion = kind(program, {}, "ccagent", "_CCAGENT_COMPLETE")
    # source() of click's class for bash would run bash to find its version.
    text = ShellComplete.source(shell_completion)
    if shell != "zsh":
        return text
    # With click's last lines an autoloaded file completes only at the first call.
    definition, _, _ = text.partition("\nif [[ $zsh_eval_context")
    return f'{definition}\n{shell_completion.func_name} "$@"\n'
