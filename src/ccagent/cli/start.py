"""The start and the end of every `ccagent` command. Imports only what all of them need."""

from __future__ import annotations

import gc

gc.disable()  # a one-shot command ends before there is much to collect

import os  # noqa: E402 - the collector comes first
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from ccagent import log  # noqa: E402
from ccagent.daemon.signals import CLOSED_PIPE, INTERRUPTED, allow_interrupts  # noqa: E402
from ccagent.errors import CcagentError, ConfigurationError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.cli.options import Options


def main() -> NoReturn:
    """Run the command line and end the process.

    Every error of a command is a sentence on stderr and exit status 1, or 2 if the command line or
    the configuration is wrong.
    """
    try:
        _open_standard_files()
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = CLOSED_PIPE
    except OSError as error:
        log.write_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
        status = 1
    except CcagentError as error:
        problems = error.problems if isinstance(error, ConfigurationError) else (str(error),)
        for problem in problems:
            log.write_error(problem)
        status = 2 if isinstance(error, ConfigurationError) else 1
    end(status)


def _open_standard_files() -> None:
    """Give the numbers 0 to 2 to /dev/null where they are closed, or a file would get them."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    if "_CCAGENT_COMPLETE" not in os.environ:
        from ccagent.cli.quick import parse_quick

        command = parse_quick(arguments)
        if command is not None:
            return sample_once(*command)
    gc.enable()
    from ccagent.cli.main import run_click

    return run_click(arguments)


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
    from ccagent.cli.options import load_configuration

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


def end(status: int) -> NoReturn:
    """End the process without the interpreter's own end, which costs 10 ms.

    Flushes what was printed. If a thread still runs, the interpreter ends as it always does.
    """
    status = _flush(status)
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        sys.exit(status)
    os._exit(status)


def _flush(status: int) -> int:
    """Write what is buffered for standard output; return the exit status that follows."""
    try:
        sys.stdout.flush()
    except AttributeError:  # started without one
        return status
    except BrokenPipeError:
        return status or CLOSED_PIPE
    except (OSError, ValueError) as error:
        log.write_error(f"standard output: {getattr(error, 'strerror', None) or error}")
        return status or 1
    return status
