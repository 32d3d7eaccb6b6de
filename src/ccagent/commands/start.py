"""Start and end of every `ccagent` command. Imports only modules that all commands need."""

from __future__ import annotations

import gc

gc.disable()  # a one-shot command ends before there is much garbage to collect

import os  # noqa: E402 - the collector comes first
import sys  # noqa: E402
from typing import TYPE_CHECKING, NoReturn  # noqa: E402

from ccagent import log  # noqa: E402
from ccagent.errors import CcagentError, ConfigurationError  # noqa: E402
from ccagent.service.signals import CLOSED_PIPE, INTERRUPTED  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence


def main() -> NoReturn:
    """Run the command line and end the process.

    An error of a command prints a sentence on stderr. The exit status is 1, or 2 if the command
    line or the configuration is wrong.
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
        if error.filename is None:  # flushing what is still buffered would fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        status = 1
    except CcagentError as error:
        problems = error.problems if isinstance(error, ConfigurationError) else (str(error),)
        for problem in problems:
            log.write_error(problem)
        status = 2 if isinstance(error, ConfigurationError) else 1
    end(status)


def _open_standard_files() -> None:
    """Open /dev/null for closed descriptors 0 to 2: no other file may get these numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status."""
    if "_CCAGENT_COMPLETE" not in os.environ:
        from ccagent.commands.quick import parse_quick

        command = parse_quick(arguments)
        if command is not None:
            from ccagent.commands.one_shot import sample_once

            return sample_once(*command)
        if arguments[:2] == ["control", "run"]:
            from ccagent.controls.start import parse_quick_service, run_service

            service = parse_quick_service(arguments[2:])
            if service is not None:
                gc.enable()
                return run_service(*service)
    gc.enable()
    from ccagent.commands.main import run_click

    return run_click(arguments)


def end(status: int) -> NoReturn:
    """End the process without the interpreter's shutdown. This saves 10 ms.

    Flushes the output. If a thread still runs, the interpreter shuts down as usual.
    """
    status = _flush(status)
    threading = sys.modules.get("threading")
    if threading is not None and threading.active_count() > 1:
        sys.exit(status)
    os._exit(status)


def _flush(status: int) -> int:
    """Flush standard output. Return the exit status: `status`, or an error's."""
    try:
        sys.stdout.flush()
    except AttributeError:  # started without standard output
        return status
    except BrokenPipeError:
        return status or CLOSED_PIPE
    except (OSError, ValueError) as error:
        log.write_error(f"standard output: {getattr(error, 'strerror', None) or error}")
        return status or 1
    return status
