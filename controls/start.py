"""The start of the service: `ccagent control run`, if possible without click.

click would need 1.1 MB of memory while the service runs. click parses all other command lines, and
prints errors and help.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ccagent import log
from ccagent.controls.service import ControlService
from ccagent.controls.setup import load_setup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.controls.setup import ControlSetup


def parse_quick_service(arguments: Sequence[str]) -> tuple[str | None, int] | None:
    """Return the file and the verbosity of a command line; None if click must parse it."""
    path: str | None = None
    verbosity = 0
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name == "--config":
            path = value if equals else next(rest, "-")
            if not path or path.startswith("-"):
                return None
        elif argument in {"-v", "--verbose"}:
            verbosity += 1
        elif argument == "-vv":
            verbosity += 2
        else:
            return None
    return path, verbosity


def run_service(path: str | None, verbosity: int) -> int:
    """Run the service until SIGTERM. Raise CcagentError."""
    log.configure(verbosity)

    def load() -> ControlSetup:
        setup = load_setup(path, needs_table=True)
        log.configure(verbosity, *setup.log)
        return setup

    service = ControlService(load)
    service.handle_signals()
    gc.collect()
    gc.freeze()  # the modules loaded now stay
    service.run()
    return 0
