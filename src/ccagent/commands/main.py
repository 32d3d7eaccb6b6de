"""The command `ccagent`, for click."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ccagent.commands.agent_command import HELP, configure_log, load, make_agent_command, run_daemon
from ccagent.config.command_options import HelpfulGroup, add_common_options, add_file_options
from ccagent.errors import ConfigurationError
from ccagent.service.signals import CLOSED_PIPE, INTERRUPTED, allow_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from ccagent.config.command_options import Common
    from ccagent.config.configuration import Configuration
    from ccagent.config.duration import Duration


class _Place(NamedTuple):
    """The module below `ccagent` that defines a command, and the first sentence of its help."""

    module: str
    summary: str


_COMMANDS = {
    "agents": _Place("commands.config", "List the agents."),
    "config": _Place(
        "commands.config", "Check a configuration, print the defaults, import Sonar's."
    ),
    "control": _Place(
        "controls.commands", "Read and set the controls of a node, and restore them."
    ),
    "export": _Place(
        "exporter.commands", "Write files for Prometheus; hash the exporter's passwords."
    ),
    "job": _Place(
        "views.job.commands", "Show how well jobs used their allocation, and give advice."
    ),
    "jobstats": _Place(
        "stores.jobstats.query_commands",
        "Query the jobstats store for the I/O of jobs, users, nodes.",
    ),
    "kernel": _Place("commands.kernel", "Load, show and unload the kernel programs."),
    "migfra": _Place(
        "machines.commands", "Start, stop and migrate virtual machines for a FAST scheduler."
    ),
    "outbox": _Place("commands.config", "Show the queue of each sink, and its dead letters."),
    "sinks": _Place("commands.config", "List the kinds of sinks; test one."),
    "store": _Place("stores.commands", "Run a store for the data of agents."),
    "top": _Place("views.top.commands", "Show this node live: its jobs, their processes and GPUs."),
    "usage": _Place("views.usage", "Show energy, CO2 and cost of ended jobs."),
    "try": _Place(
        "views.trial.commands", "Try everything on this machine; Ctrl-C deletes all data."
    ),
}
"""Commands that are imported at first use. The list of all commands needs no import."""


GROUPS = {
    "Collect": (
        "sample", "sysinfo", "metrics", "energy", "jobio", "fast", "lustre", "jobs", "cluster",
        "log",
    ),
    "Send": ("run", "status", "sinks", "outbox"),
    "Look": ("try", "top", "job", "usage", "jobstats"),
    "Keep": ("store", "export"),
    "Control": ("control", "migfra", "kernel"),
    "Set up": ("config", "doctor", "agents"),
}  # fmt: skip
"""The commands by purpose, in the order of the help."""

_PACKAGES = {"ccagent.stores": "ccagent-store", "ccagent.views": "ccagent-web"}
"""RPM and Debian packages that have modules of the program, in addition to ccagent-core."""


class Commands(HelpfulGroup):
    """All commands, including one for each built-in or installed agent."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the built-in commands."""
        return sorted({*super().list_commands(ctx), *HELP, *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command. An unknown name may be an installed agent."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        if cmd_name in _COMMANDS:
            found: click.Command = getattr(
                _import(f"ccagent.{_COMMANDS[cmd_name].module}"),
                "trial" if cmd_name == "try" else cmd_name,
            )
            return found
        if cmd_name not in HELP:
            from ccagent.registry import agent_names

            if cmd_name not in agent_names():
                return None
        return make_agent_command(cmd_name)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the list of commands for the help, each with the first sentence of its help."""
        summaries = HELP | {name: place.summary for name, place in _COMMANDS.items()}
        summarized = {name: click.Command(name, help=text) for name, text in summaries.items()}
        known = {**self.commands, **summarized}
        widest = max(map(len, known))
        for title, names in GROUPS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - widest
                formatter.write_dl(
                    [(f"{name:{widest}}", known[name].get_short_help_str(limit)) for name in names]
                )

    def invoke(self, ctx: click.Context) -> object:
        """Run a command. Ctrl-C, and a closed standard output, end it without an error message."""
        import_module("msgspec")  # an interrupt during its import would crash it
        try:
            allow_interrupts()
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(CLOSED_PIPE)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _import(module: str) -> ModuleType:
    """Import the module of a command. Raise ConfigurationError if it is in another package."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        for prefix, package in _PACKAGES.items():
            if (error.name or "").startswith(prefix):
                raise ConfigurationError(f"this command is in the package {package}") from None
        raise


def _version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    from ccagent.commit import version

    click.echo(f"ccagent, version {version()}")
    ctx.exit()


def _parse_duration(_: click.Context, __: click.Parameter, text: str) -> Duration:
    from ccagent.config.duration import Duration

    try:
        return Duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version.",
)
@add_file_options
def cli(common: Common) -> None:
    """Collect data on the nodes of a compute cluster, and send it to receivers.

    Every command reads /etc/ccagent/ccagent.toml, if it exists, unless --config or --no-config is
    given. Options may be before or after a sub-command.
    """
    del common  # the sub-command reads these options


@cli.command()
@add_common_options
def run(common: Common) -> None:
    """Run the daemon: all configured agents, until SIGTERM.

    SIGHUP reads the configuration again. Without --config it reads /etc/ccagent/ccagent.toml,
    which must exist.
    """
    from ccagent.config.options import load_configuration
    from ccagent.daemon.daemon import check_runnable

    if common.options.form == "table":
        raise click.UsageError("the daemon sends no tables; see 'ccagent top'")
    configure_log(common.verbosity)

    def override(table: dict[str, Any]) -> dict[str, Any]:
        if "controls" not in table:
            return table
        from ccagent.controls.config_keys import apply_overrides

        return apply_overrides(table)

    def read() -> Configuration:
        configuration = load_configuration(common.options, needs_file=True, adapt=override)
        check_runnable(configuration)
        configure_log(common.verbosity, configuration)
        return configuration

    run_daemon(read, serves_status=True)


@cli.command(hidden=True)
@click.argument("directory", type=click.Path())
def generate(directory: str) -> None:
    """Write man pages, completions and a configuration file below DIRECTORY, for packages."""
    from ccagent.commands.generate import generate

    for path in generate(cli, directory):
        click.echo(path)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--wait",
    "wait",
    metavar="TIME",
    default="0s",
    callback=_parse_duration,
    help="Wait at most TIME, such as 10s, until the daemon has started and has sent a message.",
)
@add_file_options
def status(as_json: bool, wait: Duration, common: Common) -> None:
    """Show the counters of the running daemon.

    Exit status 1 if none runs.
    """
    from ccagent.service.status_socket import await_status

    configuration = load(common)
    place = configuration.settings.status_socket
    if not place:
        raise ConfigurationError(f"{configuration.place}: status-socket: not set")
    found = await_status(place, wait.seconds)
    if as_json:
        click.echo(found.json().decode())
        return
    from ccagent.views.status_table import format_status
    from ccagent.views.terminal import find_style, find_width, print_lines

    print_lines(format_status(found, find_width(100), find_style()))


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--deliver", is_flag=True, help="Send a test message to each sink.")
@add_common_options
def doctor(as_json: bool, deliver: bool, common: Common) -> None:
    """Check what this machine provides and what is missing.

    Exit status 1 if an agent or sink can't work.
    """
    from ccagent.doctor.examination import doctor

    sys.exit(doctor(load(common), is_json=as_json, delivers=deliver))


def run_click(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status. Raise CcagentError if the command fails."""
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


def _hint(error: click.NoSuchOption) -> str:
    """Return what the user may have meant: an option, or a key that another option sets."""
    from difflib import get_close_matches

    context = error.ctx
    if context is None:
        return ""
    known = [one for each in context.command.params for one in each.opts if one.startswith("--")]
    if found := get_close_matches(error.option_name, known, n=1, cutoff=0.75):
        return f"; did you mean {found[0]!r}?"
    key = error.option_name.lstrip("-")
    field = key.replace("-", "_")
    if "--sink-set" in known:
        from ccagent.registry import transport_names
        from ccagent.transports.base import transport_class

        if any(
            field in transport_class(f"{name}:").Settings.__struct_fields__
            for name in transport_names()
        ):
            return f"; it is a key of sinks: --sink-set {key}=VALUE"
    if "--set" in known:
        from ccagent.agents.base import agent_class

        if field in agent_class(context.command.name or "").Settings.__struct_fields__:
            return f"; it is a key of the agent: --set {key}=VALUE"
    return ""


def _sentence(error: click.ClickException) -> str:
    """Return click's error message in one line, with the command for its help."""
    if isinstance(error, click.NoSuchOption):
        text = f"no such option {error.option_name!r}{_hint(error)}"
    else:
        text = " ".join(error.format_message().split()).rstrip(".")
    if text[1:2].islower():
        text = text[:1].lower() + text[1:]
    context = getattr(error, "ctx", None)
    if not isinstance(context, click.Context):
        return text
    command = context.command_path.removeprefix("ccagent").strip()
    subject = f"{command}: " if command else ""
    return f"{subject}{text}; see '{context.command_path} --help'"
