"""The commands `ccagent store jobstats`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.config.command_options import HelpfulGroup
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ccagent.stores.jobstats.settings import JobstatsStoreSettings

_DEFAULT = "/etc/ccagent/jobstats-store.toml"
_KEYS = ("data", "database", "listen", "token_file", "first")
_PACKAGES = ("psycopg", "psycopg_pool", "starlette", "uvicorn", "httptools")


def _with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("-v", "--verbose", count=True, help="Log information; -vv: log everything."),
        click.option(
            "--first",
            type=click.Choice(["skip", "count"]),
            help="Skip or count a series' first record; count: for recorded dumps.",
        ),
        click.option(
            "--token-file", metavar="FILE", help="File with the tokens of senders and readers."
        ),
        click.option("--listen", metavar="ADDRESS:PORT", help="Address and port of HTTP."),
        click.option("--database", metavar="URL", help="postgresql:// URL of another PostgreSQL."),
        click.option("--data", metavar="DIR", help="Directory of an embedded PostgreSQL."),
        click.option("--config", metavar="FILE", help=f"{_DEFAULT} if it exists."),
    ):
        function = option(function)
    return function


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@_with_options
@click.pass_context
def jobstats(ctx: click.Context, /, **options: Any) -> None:
    """Run the store of Lustre jobstats, which keeps records of the agent `lustre` in PostgreSQL."""
    if ctx.invoked_subcommand is not None:
        return
    need_packages()
    settings = _settings(**options)
    from ccagent.stores.jobstats.server import run_jobstats_store

    try:
        run_jobstats_store(settings)
    except OSError as error:
        from ccagent.net.error_texts import explain_listening

        raise ConfigurationError(f"the store can't start: {explain_listening(error)}") from error


@jobstats.command()
@_with_options
@click.option("--dry-run", "is_dry", is_flag=True, help="Only print the SQL statements.")
def migrate(is_dry: bool, **options: Any) -> None:
    """Apply pending migrations to the database. The store also applies them at its start."""
    need_packages()
    settings = _settings(**options)
    from ccagent.stores.jobstats.administration import migrate_now

    for line in migrate_now(settings, is_dry=is_dry):
        click.echo(line)


@jobstats.command()
@_with_options
def status(**options: Any) -> None:
    """Show the state of the store and its database; exit status 1 if one does not respond."""
    need_packages()
    settings = _settings(**options)
    from ccagent.stores.jobstats.administration import describe_state

    lines, is_well = describe_state(settings)
    for line in lines:
        click.echo(line)
    if not is_well:
        sys.exit(1)


@jobstats.command()
@_with_options
def retention(**options: Any) -> None:
    """Remove data older than the retention now. The running store does this periodically."""
    need_packages()
    settings = _settings(**options)
    from ccagent.stores.jobstats.administration import apply_retention

    for line in apply_retention(settings):
        click.echo(line)


def need_packages(names: tuple[str, ...] = _PACKAGES) -> None:
    """Raise ConfigurationError if packages of the extra are missing."""
    from importlib.util import find_spec

    from ccagent.machine.interpreter import install_command

    missing = [name for name in names if not find_spec(name)]
    if missing:
        needed = "'psycopg[binary,pool]' starlette uvicorn httptools"
        raise ConfigurationError(f"this needs {', '.join(missing)}: {install_command(needed)}")


def need_query_packages() -> None:
    """Raise ConfigurationError if packages for queries are missing."""
    need_packages(("psycopg", "psycopg_pool"))


def _settings(**options: Any) -> JobstatsStoreSettings:
    """Return the settings from the options of the command or its parent."""
    import os

    from ccagent import log
    from ccagent.stores.jobstats.settings import read_jobstats_settings

    context = click.get_current_context()
    above = context.parent.params if context.parent is not None else {}
    log.configure(options["verbose"] or above.get("verbose") or 0)
    given = {name: options[name] or above.get(name) for name in _KEYS}
    changes = {key: value for key, value in given.items() if value}
    config = options["config"] or above.get("config")
    if config is None and os.path.exists(_DEFAULT):
        config = _DEFAULT
    return read_jobstats_settings(config, changes)
