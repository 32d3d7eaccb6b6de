"""The commands `ccagent control`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import Common, HelpfulGroup, add_file_options
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.controls.client import CommandLine
    from ccagent.controls.settings import ControlSetup


@click.group(cls=HelpfulGroup)
def control() -> None:
    """Read and set the controls of a node, and restore them.

    Without --node the commands send requests to ccagent-control.service of this node. With --node
    they send requests to nodes over NATS, with URL and login of the table [controls].
    """


@control.command()
@add_file_options
def run(common: Common) -> None:
    """Run the service until SIGTERM. SIGHUP reads the configuration again.

    Without --config it reads /etc/ccagent/ccagent.toml.
    """
    from ccagent.controls.service import run_service

    if common.options.is_without_file:
        raise ConfigurationError("control run needs a configuration file")
    run_service(common.options.path, common.verbosity)


def _with_client(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of commands that send requests to nodes."""
    for option in (
        click.option(
            "--node",
            "nodes",
            metavar="LIST",
            help="Ask these over NATS: n1,n[2-40]; 'all': every node that answers.",
        ),
        click.option("--subject", metavar="SUBJECT", help="Subject instead of the configured one."),
        click.option(
            "--sign",
            "seed_file",
            metavar="FILE",
            type=click.Path(),
            help="Sign requests with the seed of a user's nkey (SU...) in FILE.",
        ),
        click.option(
            "--wait",
            "seconds",
            default=2.0,
            show_default=True,
            type=click.FloatRange(0.1, 60.0),
            metavar="SECONDS",
            help="Wait this long for answers.",
        ),
        click.option("--json", "as_json", is_flag=True, help="As JSON, a line an answer."),
    ):
        function = option(function)
    return function


@control.command("list")
@_with_client
@add_file_options
def list_(common: Common, **options: Any) -> None:
    """List the controls, with device types and methods."""
    _ask(common, options, lambda command: command.show_list())


@control.command()
@_with_client
@add_file_options
def status(common: Common, **options: Any) -> None:
    """Show the senders with the most requests, refusals and log lines."""
    _ask(common, options, lambda command: command.show_status())


@control.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME[@DEVICE]...")
@_with_client
@add_file_options
def get(names: tuple[str, ...], common: Common, **options: Any) -> None:
    """Read controls. DEVICE is a number, a PCI address, or 'all' (default)."""
    _ask(common, options, lambda command: command.get(names))


@control.command("set")
@click.argument("assignments", nargs=-1, required=True, metavar="NAME[@DEVICE]=VALUE...")
@click.option("--lease", metavar="DURATION", help="Put back after this long: 30m, 2h.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Check, and write nothing.")
@_with_client
@add_file_options
def set_(
    assignments: tuple[str, ...], lease: str | None, is_dry: bool, common: Common, **options: Any
) -> None:
    """Set controls, within the policy of each node; exit status 1 if one refuses."""
    _ask(common, options, lambda command: command.set(assignments, lease=lease, is_dry=is_dry))


@control.command()
@click.argument("name", required=False, default="", metavar="[NAME]")
@click.option(
    "--job", default="", metavar="ID", help="Only what was set for this job; for epilogs."
)
@_with_client
@add_file_options
def restore(name: str, job: str, common: Common, **options: Any) -> None:
    """Restore values: all changed ones, those of one control, or those of a job."""
    _ask(common, options, lambda command: command.restore(name, job))


@control.command()
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), metavar="N")
@click.option("--json", "as_json", is_flag=True, help="As JSON, a line an entry.")
@add_file_options
def audit(last: int, as_json: bool, common: Common) -> None:
    """Show changes, refusals and restores on this node, oldest first."""
    import msgspec

    from ccagent.controls.journal import describe, read_audit
    from ccagent.errors import CcagentError
    from ccagent.log import printable

    directory = _load(common).settings.state_directory
    try:
        entries = read_audit(directory, last)
    except OSError as error:
        raise CcagentError(f"{directory}: {error.strerror}") from error
    for entry in entries:
        text = msgspec.json.encode(entry).decode() if as_json else None
        click.echo(text or f"{entry.time}  {printable(describe(entry))}")


def _ask(common: Common, options: dict[str, Any], ask: Callable[[CommandLine], bool]) -> None:
    """Send requests and print the answers. Exit with 1 if an answer is an error or missing."""
    from ccagent.controls.client import CommandLine, find_client

    setup = _load(common)
    client = find_client(
        setup,
        nodes=options["nodes"],
        subject=options["subject"],
        seed_file=options["seed_file"],
        seconds=options["seconds"],
    )
    if not ask(CommandLine(client, as_json=options["as_json"], print_line=click.echo)):
        sys.exit(1)


def _load(common: Common) -> ControlSetup:
    from ccagent import log
    from ccagent.controls.settings import load_setup, without_file

    log.configure(common.verbosity)
    if common.options.is_without_file:
        return without_file()
    setup = load_setup(common.options.path, needs_table=False)
    log.configure(common.verbosity, *log.read_choice(setup.table))
    return setup
