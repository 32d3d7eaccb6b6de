"""The program `ccagent`, and `python -m ccagent`."""

import sys


def main() -> None:
    """Run the command line. Signals are prepared before any other import."""
    _prepare_signals()
    from ccagent.commands.start import main

    main()


def _prepare_signals() -> None:
    """Make early signals harmless.

    Ctrl-C ends the program without a traceback. SIGHUP and SIGUSR1 are blocked until the daemon
    handles them.
    """
    # The built-in `_signal`: importing `signal` takes milliseconds, in which a signal may arrive.
    signal = __import__("_signal")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "run" in sys.argv:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP, signal.SIGUSR1))


if __name__ == "__main__":
    main()
