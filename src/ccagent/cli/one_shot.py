"""The command `AGENT --once`: one sample, then the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent import log
from ccagent.cli.options import load_configuration
from ccagent.daemon.signals import allow_interrupts

if TYPE_CHECKING:
    from ccagent.cli.options import Options


def sample_once(
    agent: str,
    options: Options,
    *,
    verbosity: int = 0,
    assignments: tuple[str, ...] = (),
    is_dry: bool = False,
) -> int:
    """Sample once with an agent and return the exit status of the command.

    `is_dry`: print what each sink would get, and deliver nothing.
    """
    log.configure(verbosity, is_brief=True)
    configuration = load_configuration(options, agent=agent, assignments=assignments)
    settings = configuration.settings
    log.configure(verbosity, settings.log_level, settings.log_format, is_brief=True)
    if is_dry:
        from ccagent.cli.dry_run import print_messages

        print_messages(configuration, agent)
        return 0
    from ccagent.cli.once import run_once

    allow_interrupts()  # not before: msgspec does not survive one while it is imported
    return 0 if run_once(configuration, agent) else 1
