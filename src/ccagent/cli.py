"""The command `ccagent`."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from ccagent import __version__
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.signals import CLOSED_PIPE, INTERRUPTED, allow_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.config import Configuration

_HELP = {
    "sample": "Sample the processes and jobs of this node.",
    "sysinfo": "Describe the hardware and software of this node.",
    "jobs": "Tell the new and changed jobs of a Slurm cluster, on its master.",
    "cluster": "Tell the partitions and nodes of a Slurm cluster, on its master.",
    "lustre": "Tell what jobs read and write, on a server of Lustre.",
    "metrics": "Tell metrics of this node.",
    "log": "Tell what ccagent itself warns of; in the daemon.",
}

_EXTENSIONS = {
    "lustre": "ccagent.agents.lustre.commands",
    "metrics": "ccagent.agents.metrics.commands",
}
"""Modules whose function `extended` gives an agent's command more to do."""

_COMMANDS = {
    "config": "ccagent.config_commands",
    "kernel": "ccagent.agents.sonar.kernel.commands",
}
"""Groups of commands, and the modules that have them."""

_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Commands(click.Group):
    """The commands, among them one for each agent, built-in or installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the built-in commands."""
        return sorted({*super().list_commands(ctx), *_HELP, *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command; an unknown name may be that of an installed agent."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        if cmd_name in _COMMANDS:
            found: click.Command = getattr(import_module(_COMMANDS[cmd_name]), cmd_name)
            return found
        if cmd_name not in _HELP:
            from ccagent.registry import agent_names

            if cmd_name not in agent_names():
                return None
        return _agent_command(cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C, and a reader of standard output that has gone, end it quietly."""
        try:
            allow_interrupts()
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(CLOSED_PIPE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line. A standard output that is full is an error."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno not in _NOT_WRITTEN or error.filename is not None:
                raise
            # Else the interpreter would try to write the rest at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise CcagentError(f"standard output: {error.strerror}") from error


def _version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    from ccagent.commit import commit

    found = commit()
    click.echo(f"ccagent, version {__version__}" + (f" ({found})" if found else ""))
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and the commit.",
)
def cli() -> None:
    """Collect what the nodes of a compute cluster know, and send it where it is kept."""


def _common(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command takes."""
    for option in (
        click.option("-v", "--verbose", count=True, help="Say more on stderr; twice: everything."),
        click.option(
            "--sink",
            "sinks",
            multiple=True,
            metavar="URL",
            help="Where to send it; repeatable. Without any: stdout:",
        ),
        click.option(
            "--sink-set",
            "sink_values",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set a key of the sinks given by --sink; repeatable.",
        ),
        click.option(
            "--format",
            "form",
            type=click.Choice(["sonar", "line"]),
            help="Sonar JSON envelopes, or line protocol.",
        ),
        click.option(
            "--config", "path", type=click.Path(), metavar="FILE", help="Configuration file."
        ),
        click.option("--cluster", metavar="NAME", help="Name of the cluster in every record."),
    ):
        function = option(function)
    return function


def _agent_command(name: str) -> click.Command:
    """Make the command of an agent."""

    @click.command(name, help=_HELP.get(name, f"Sample once with the installed agent {name}."))
    @click.option("--once", is_flag=True, help="One sample (this is what happens without --every).")
    @click.option(
        "--every",
        metavar="DURATION",
        help="Again and again, aligned to the clock, until interrupted: 30s, 5m, 1h.",
    )
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Set a key of [agents.{name}]; repeatable.",
    )
    @_common
    def command(
        once: bool, every: str | None, assignments: tuple[str, ...], verbose: int, **options: Any
    ) -> None:
        _log(verbose)
        if once and every:
            raise click.UsageError("--once and --every exclude each other")
        if every:
            assignments = (*assignments, f'every="{every}"')
        configuration = _configuration(options, agent=name, assignments=assignments)
        if every:
            _run_daemon(lambda: configuration, serves_status=False)
        else:
            from ccagent.once import run_once

            if not run_once(configuration, name):
                sys.exit(1)

    extension = _EXTENSIONS.get(name)
    if extension is None:
        return command

    def configure(path: str | None) -> Configuration:
        return _agent_alone(name, path)

    extended: click.Command = import_module(extension).extended(command, configure)
    return extended


def _agent_alone(name: str, path: str | None) -> Configuration:
    options = {"path": path, "cluster": None, "sinks": (), "sink_values": (), "form": None}
    return _configuration(options, agent=name)


@cli.command()
@_common
def run(verbose: int, **options: Any) -> None:
    """Run the daemon: all configured agents, until SIGTERM. SIGHUP reads the configuration again.

    Without --config it reads /etc/ccagent/ccagent.toml.
    """
    from ccagent.config import DEFAULT_PATH
    from ccagent.daemon import check_runnable

    _log(verbose)
    options["path"] = options["path"] or DEFAULT_PATH

    def load() -> Configuration:
        configuration = _configuration(options)
        check_runnable(configuration)
        return configuration

    _run_daemon(load, serves_status=True)


@cli.command(hidden=True)
@click.argument("directory", type=click.Path())
def generate(directory: str) -> None:
    """Write man pages, completions and a configuration file below DIRECTORY, for packages."""
    from ccagent.generate import generate

    for path in generate(cli, directory):
        click.echo(path)


@cli.group(invoke_without_command=True)
@_common
@click.pass_context
def outbox(ctx: click.Context, /, verbose: int, **options: Any) -> None:
    """Show the queue of each sink and its dead letters; exit status 1 if one can't be read.

    Without --config it reads /etc/ccagent/ccagent.toml.
    """
    from ccagent.config import DEFAULT_PATH

    _log(verbose)
    options["path"] = options["path"] or DEFAULT_PATH
    ctx.obj = lambda: _configuration(options)
    if ctx.invoked_subcommand is None:
        from ccagent.queue.commands import report

        text, is_readable = report(ctx.obj())
        click.echo(text, nl=False)
        if not is_readable:
            sys.exit(1)


@outbox.command()
@click.pass_obj
def flush(load: Callable[[], Configuration]) -> None:
    """Send what is queued, now; exit status 1 if something is left."""
    from ccagent.queue.commands import flush

    if not flush(load()):
        sys.exit(1)


def _selecting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters."""
    for option in (
        click.option("--sink", "sinks", multiple=True, metavar="NAME", help="Only of this sink."),
        click.option("--reason", default="", metavar="TEXT", help="Only with this in the reason."),
    ):
        function = option(function)
    return function


@outbox.command()
@_selecting
@click.pass_obj
def retry(load: Callable[[], Configuration], sinks: tuple[str, ...], reason: str) -> None:
    """Queue dead letters again; the daemon sends them, or `ccagent outbox flush`."""
    from ccagent.queue.commands import Selection, retry

    click.echo(f"queued again: {retry(load(), Selection(sinks, reason))}")


@outbox.command()
@_selecting
@click.option("--all", "is_whole", is_flag=True, help="Delete the queued messages too.")
@click.pass_obj
def drop(
    load: Callable[[], Configuration], sinks: tuple[str, ...], reason: str, is_whole: bool
) -> None:
    """Delete dead letters."""
    from ccagent.queue.commands import Selection, drop

    if is_whole and reason:
        raise click.UsageError("--all and --reason exclude each other")
    click.echo(f"deleted: {drop(load(), Selection(sinks, reason), is_whole=is_whole)}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@_common
def status(as_json: bool, verbose: int, **options: Any) -> None:
    """Ask the running daemon what it has done; exit status 1 if none runs.

    Without --config it reads /etc/ccagent/ccagent.toml, if there is one.
    """
    from ccagent.config import DEFAULT_PATH
    from ccagent.status_socket import read_status

    _log(verbose)
    path = options["path"] or (DEFAULT_PATH if os.path.exists(DEFAULT_PATH) else None)
    place = _configuration({**options, "path": path}).settings.status_socket
    if not place:
        raise ConfigurationError(f"{path}: status-socket: none is set")
    found = read_status(place)
    click.echo(found.json().decode() if as_json else found.table(), nl=as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--deliver", is_flag=True, help="Send each sink a marked message, to be sure.")
@_common
def doctor(as_json: bool, deliver: bool, verbose: int, **options: Any) -> None:
    """Tell what this machine has and lacks; exit status 1 if an agent or sink can't work.

    Without --config it reads /etc/ccagent/ccagent.toml, if there is one.
    """
    from ccagent.config import DEFAULT_PATH
    from ccagent.doctor.commands import doctor

    _log(verbose)
    options["path"] = options["path"] or (DEFAULT_PATH if os.path.exists(DEFAULT_PATH) else None)
    sys.exit(doctor(_configuration(options), is_json=as_json, delivers=deliver))


@cli.command()
def agents() -> None:
    """List the agents."""
    from ccagent.registry import agent_class, agent_names

    for name in agent_names():
        _entry(name, agent_class(name))


@cli.group(invoke_without_command=True)
@click.pass_context
def sinks(ctx: click.Context, /) -> None:
    """List the kinds of sinks, by the scheme of their URL; or test one."""
    from ccagent.registry import transport_class, transport_names

    if ctx.invoked_subcommand is None:
        for name in transport_names():
            _entry(f"{name}:", transport_class(f"{name}:"))


@sinks.command()
@click.argument("sink", metavar="URL|NAME")
@_common
def test(sink: str, verbose: int, **options: Any) -> None:
    """Send one marked message to a URL, or to the sink NAME of the configuration.

    Says what the other side answered; exit status 1 if it did not take the message.
    """
    from ccagent.options import sinks_of
    from ccagent.settings import nearest
    from ccagent.trial import try_sink

    _log(verbose)
    if ":" in sink:
        options["sinks"] = (sink,)
        (sink,) = sinks_of([sink])
    configuration = _configuration(options)
    if sink not in configuration.sinks:
        known = nearest(sink, list(configuration.sinks))
        raise ConfigurationError(f"{configuration.place}: there is no [sinks.{sink}]{known}")
    answer = try_sink(configuration, sink)
    click.echo(f"taken: {answer}" if answer else "taken")


def _entry(name: str, described: type) -> None:
    first_line = (described.__doc__ or "").strip().partition("\n")[0]
    click.echo(f"{name:10} {first_line}")


def _log(verbose: int) -> None:
    from ccagent import log

    log.configure(verbose)


def _configuration(
    options: dict[str, Any], *, agent: str = "", assignments: tuple[str, ...] = ()
) -> Configuration:
    """Join file and options to one checked configuration; with `agent` of that one alone."""
    from ccagent.config import check_files
    from ccagent.config_files import Files, read_files
    from ccagent.options import for_agent, with_options, with_values

    path = options["path"]
    files = read_files(path) if path else Files({}, ["command line"], {})
    table = files.table
    if agent:
        table = with_values(for_agent(table, agent), "agents", [agent], assignments)
    form = options["form"] or (_only_format(agent) if agent and not table.get("sinks") else None)
    table = with_options(table, options["cluster"], options["sinks"], form)
    if options["sink_values"]:
        if not options["sinks"]:
            raise ConfigurationError("--sink-set: is for sinks given by --sink")
        table = with_values(table, "sinks", table["sinks"], options["sink_values"])
    return check_files(files, table)


def _only_format(agent: str) -> str | None:
    """Give the format of an agent that has just one other than `sonar`."""
    from ccagent.registry import agent_class

    formats = agent_class(agent).formats
    return None if "sonar" in formats else min(formats)


def _run_daemon(load: Callable[[], Configuration], *, serves_status: bool) -> None:
    from ccagent.clock import Clock
    from ccagent.daemon import Daemon

    daemon = Daemon(load, Clock(), serves_status=serves_status)
    daemon.handle_signals()
    daemon.run()
    if daemon.is_output_closed:
        sys.exit(CLOSED_PIPE)


def main() -> None:
    """Run the command; errors of ours become one line on stderr and exit status 1 or 2."""
    try:
        cli(prog_name="ccagent")
    except CcagentError as error:
        from ccagent.log import printable

        sys.stderr.write(f"ccagent: {printable(str(error))}\n")
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
