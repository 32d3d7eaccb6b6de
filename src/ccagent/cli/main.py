"""The command `ccagent`, for click."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from ccagent import __version__
from ccagent.cli.command_options import HelpfulGroup, add_common_options, add_file_options
from ccagent.daemon.signals import CLOSED_PIPE, INTERRUPTED, allow_interrupts
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.cli.command_options import Common
    from ccagent.cli.options import Options
    from ccagent.config.configuration import Configuration

_HELP = {
    "sample": "Collect the processes and jobs of this node.",
    "sysinfo": "Describe the hardware and software of this node.",
    "jobs": "Collect the new and changed jobs of a Slurm cluster, on its master.",
    "cluster": "Collect the partitions and nodes of a Slurm cluster, on its master.",
    "lustre": "Collect what jobs read and write, on a server of Lustre.",
    "metrics": "Collect metrics of this node.",
    "log": "Send ccagent's own warnings and errors as log messages; in the daemon.",
}

_WHERE_RECORDS_GO = """\
Records are printed to stdout, or sent to --sink, or to the sinks of the file that --config names.
From /etc/ccagent/ccagent.toml, read without --config, come the cluster and the agent's keys; its
sinks are those of the daemon."""

_EXTENSIONS = {
    "lustre": "ccagent.agents.lustre.commands",
    "metrics": "ccagent.agents.metrics.commands",
}
"""Modules whose function `extended` gives an agent's command more to do."""

_COMMANDS = {
    "config": "ccagent.config.commands",
    "kernel": "ccagent.machine.bpf.commands",
}
"""Groups of commands, and the modules that have them."""


class Commands(HelpfulGroup):
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
            from ccagent.config.registry import agent_names

            if cmd_name not in agent_names():
                return None
        return _agent_command(cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Ctrl-C, and a reader of standard output that has gone, end it quietly."""
        import_module("msgspec")  # which an interrupt would crash while it is imported
        try:
            allow_interrupts()
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(CLOSED_PIPE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


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
@add_file_options
def cli(common: Common) -> None:
    """Collect what the nodes of a compute cluster know, and send it where it is kept.

    Every command reads /etc/ccagent/ccagent.toml, if there is one, unless --config names another
    file or --no-config none. Options stand before or after a sub-command.
    """
    del common  # the sub-command takes what is given here


def _agent_command(name: str) -> click.Command:
    """Make the command of an agent."""
    summary = _HELP.get(name, f"Collect one sample with the installed agent {name}.")

    @click.command(name, help=f"{summary}\n\n{_WHERE_RECORDS_GO}")
    @click.option("--once", is_flag=True, help="One sample (this is what happens without --every).")
    @click.option(
        "--every",
        metavar="DURATION",
        help="Again and again, aligned to the clock, until interrupted: 30s, 5m, 1h.",
    )
    @click.option(
        "--dry-run",
        "is_dry",
        is_flag=True,
        help="Print what each sink would get; send and remember nothing.",
    )
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Set a key of [agents.{name}]; repeatable.",
    )
    @add_common_options
    def command(
        once: bool, every: str | None, is_dry: bool, assignments: tuple[str, ...], common: Common
    ) -> None:
        if every and (once or is_dry):
            other = "--once" if once else "--dry-run"
            raise click.UsageError(f"{other} and --every exclude each other")
        if not every:
            from ccagent.cli.one_shot import sample_once

            options, verbosity = common
            sys.exit(
                sample_once(
                    name, options, verbosity=verbosity, assignments=assignments, is_dry=is_dry
                )
            )
        from ccagent.cli.options import load_configuration

        _log(common.verbosity)
        assignments = (*assignments, f'every="{every}"')
        configuration = load_configuration(common.options, agent=name, assignments=assignments)
        _log(common.verbosity, configuration)
        _run_daemon(lambda: configuration, serves_status=False)

    extension = _EXTENSIONS.get(name)
    if extension is None:
        return command

    def configure(options: Options) -> Configuration:
        from ccagent.cli.options import load_configuration

        return load_configuration(options, agent=name)

    extended: click.Command = import_module(extension).extended(command, configure)
    return extended


@cli.command()
@add_common_options
def run(common: Common) -> None:
    """Run the daemon: all configured agents, until SIGTERM. SIGHUP reads the configuration again.

    Without --config it reads /etc/ccagent/ccagent.toml, which must exist.
    """
    from ccagent.cli.options import load_configuration
    from ccagent.daemon.daemon import check_runnable

    _log(common.verbosity)

    def load() -> Configuration:
        configuration = load_configuration(common.options, needs_file=True)
        check_runnable(configuration)
        _log(common.verbosity, configuration)
        return configuration

    _run_daemon(load, serves_status=True)


@cli.command(hidden=True)
@click.argument("directory", type=click.Path())
def generate(directory: str) -> None:
    """Write man pages, completions and a configuration file below DIRECTORY, for packages."""
    from ccagent.cli.generate.commands import generate

    for path in generate(cli, directory):
        click.echo(path)


@cli.group(cls=HelpfulGroup, invoke_without_command=True)
@add_file_options
@click.pass_context
def outbox(ctx: click.Context, /, common: Common) -> None:
    """Show the queue of each sink and its dead letters; exit status 1 if one can't be read."""
    if ctx.invoked_subcommand is None:
        from ccagent.queue.commands import report

        text, is_readable = report(_load(common, needs_file=True))
        click.echo(text, nl=False)
        if not is_readable:
            sys.exit(1)


@outbox.command()
@add_file_options
def flush(common: Common) -> None:
    """Send what is queued, now; exit status 1 if something is left."""
    from ccagent.queue.commands import flush

    if not flush(_load(common, needs_file=True)):
        sys.exit(1)


def _selecting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead letters."""
    for option in (
        click.option("--sink", "names", multiple=True, metavar="NAME", help="Only of this sink."),
        click.option("--reason", default="", metavar="TEXT", help="Only with this in the reason."),
    ):
        function = option(function)
    return function


@outbox.command()
@_selecting
@add_file_options
def retry(names: tuple[str, ...], reason: str, common: Common) -> None:
    """Queue dead letters again; the daemon sends them, or `ccagent outbox flush`."""
    from ccagent.queue.commands import Selection, retry

    count = retry(_load(common, needs_file=True), Selection(names, reason))
    click.echo(f"queued again: {count}")


@outbox.command()
@_selecting
@click.option("--all", "is_whole", is_flag=True, help="Delete the queued messages too.")
@add_file_options
def drop(names: tuple[str, ...], reason: str, is_whole: bool, common: Common) -> None:
    """Delete dead letters."""
    from ccagent.queue.commands import Selection, drop

    if is_whole and reason:
        raise click.UsageError("--all and --reason exclude each other")
    configuration = _load(common, needs_file=True)
    click.echo(f"deleted: {drop(configuration, Selection(names, reason), is_whole=is_whole)}")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@add_common_options
def status(as_json: bool, common: Common) -> None:
    """Show what the running daemon has done; exit status 1 if none runs."""
    from ccagent.daemon.status_socket import read_status

    configuration = _load(common)
    place = configuration.settings.status_socket
    if not place:
        raise ConfigurationError(f"{configuration.place}: status-socket: none is set")
    found = read_status(place)
    click.echo(found.json().decode() if as_json else found.table(), nl=as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--deliver", is_flag=True, help="Send each sink a marked message, to be sure.")
@add_common_options
def doctor(as_json: bool, deliver: bool, common: Common) -> None:
    """Check what this machine provides and what is missing.

    Exit status 1 if an agent or sink can't work.
    """
    from ccagent.doctor.commands import doctor

    sys.exit(doctor(_load(common), is_json=as_json, delivers=deliver))


@cli.command()
def agents() -> None:
    """List the agents."""
    from ccagent.config.registry import agent_class, agent_names

    for name in agent_names():
        _entry(name, agent_class(name))


@cli.group(cls=HelpfulGroup, invoke_without_command=True)
@add_common_options
@click.pass_context
def sinks(ctx: click.Context, /, common: Common) -> None:
    """List the kinds of sinks, by the scheme of their URL; or test one."""
    del common  # the sub-command takes what is given here
    from ccagent.config.registry import transport_class, transport_names

    if ctx.invoked_subcommand is None:
        for name in transport_names():
            _entry(f"{name}:", transport_class(f"{name}:"))


@sinks.command()
@click.argument("sink", metavar="URL|NAME")
@add_common_options
def test(sink: str, common: Common) -> None:
    """Send one marked message to a URL, or to the sink NAME of the configuration.

    Prints what the other side answered; exit status 1 if it did not take the message.
    """
    from ccagent.cli.options import sinks_of
    from ccagent.cli.sink_probe import try_sink
    from ccagent.config.settings import nearest

    if ":" in sink:
        common = common._replace(options=common.options._replace(sinks=(sink,)))
        (sink,) = sinks_of([sink])
    configuration = _load(common)
    if sink not in configuration.sinks:
        known = nearest(sink, list(configuration.sinks))
        raise ConfigurationError(f"{configuration.place}: there is no [sinks.{sink}]{known}")
    answer = try_sink(configuration, sink)
    click.echo(f"taken: {answer}" if answer else "taken")


def _entry(name: str, described: type) -> None:
    first_line = (described.__doc__ or "").strip().partition("\n")[0]
    click.echo(f"{name:10} {first_line}")


def _load(common: Common, *, needs_file: bool = False) -> Configuration:
    """Read the configuration, and log as it says."""
    from ccagent.cli.options import load_configuration

    _log(common.verbosity)
    configuration = load_configuration(common.options, needs_file=needs_file)
    _log(common.verbosity, configuration)
    return configuration


def _log(verbosity: int, configuration: Configuration | None = None) -> None:
    from ccagent import log

    if configuration is None:
        log.configure(verbosity)
    else:
        log.configure(
            verbosity, configuration.settings.log_level, configuration.settings.log_format
        )


def _run_daemon(load: Callable[[], Configuration], *, serves_status: bool) -> None:
    from ccagent.daemon.daemon import Daemon
    from ccagent.machine.clock import Clock

    daemon = Daemon(load, Clock(), serves_status=serves_status)
    daemon.handle_signals()
    daemon.run()
    if daemon.is_output_closed:
        sys.exit(CLOSED_PIPE)


def run_click(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status. Raises CcagentError."""
    try:
        found: object = cli.main([*arguments], prog_name="ccagent", standalone_mode=False)
    except SystemExit as error:
        found = error.code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        raise ConfigurationError(_sentence(error)) from None
    except click.Abort:
        raise KeyboardInterrupt from None
    return found if isinstance(found, int) else 0


def _sentence(error: click.ClickException) -> str:
    """Return what click complains of in one line, with the command whose help says more."""
    text = " ".join(error.format_message().split()).rstrip(".")
    if text[1:2].islower():
        text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if not isinstance(context, click.Context):
        return text
    command = context.command_path.removeprefix("ccagent").strip()
    subject = f"{command}: " if command else ""
    return f"{subject}{text}; see '{context.command_path} --help'"
