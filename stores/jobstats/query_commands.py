"""The commands `ccagent jobstats`: queries for the I/O of jobs and users."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ccagent.config.command_options import HelpfulGroup
from ccagent.stores.jobstats.query_request import GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ccagent.stores.jobstats.client import StorePlace

_FORMS = click.Choice(["table", "json", "csv"])


def _with_place(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--ca-file", metavar="FILE", default="", help="CA certificates."),
        click.option("--password-file", metavar="FILE", default="", help="Database password."),
        click.option("--token-file", metavar="FILE", default="", help="Token of a reader."),
        click.option("--database", metavar="URL", default="", help="Query this database."),
        click.option(
            "--url", metavar="URL", default="http://127.0.0.1:8083", show_default=True,
            help="URL of the store.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _with_range(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--to", metavar="TIME", help="End; by default now."),
        click.option("--from", "from_", metavar="TIME", help="Start, such as 2026-11-22T10:00."),
        click.option("--last", metavar="DURATION", help="Time before the end; by default 1h."),
    ):
        function = option(function)
    return function


@click.group(cls=HelpfulGroup)
def jobstats() -> None:
    """Query the jobstats store for the I/O of jobs, users, nodes."""


@jobstats.command()
@_with_range
@click.option("--by", type=click.Choice(GROUPS), default="job", show_default=True, help="Group by.")
@click.option(
    "--sort",
    metavar="OPERATION",
    default="read_bytes",
    show_default=True,
    help="Sort by, largest first.",
)
@click.option("--columns", metavar="OPERATION,...", help="Operations to show.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option(
    "--where",
    "wheres",
    metavar="NAME=VALUE",
    multiple=True,
    help=f"Filter by {', '.join(GROUPS[:4])}, ...; repeatable.",
)
@click.option("--format", "form", type=_FORMS, default="table", show_default=True)
@_with_place
def top(*, wheres: tuple[str, ...], form: Any, **options: Any) -> None:
    """List the largest jobs, users, nodes, targets, programs, accounts or partitions by I/O."""
    values, place = _split(options, "by", "sort", "columns", "limit")
    values |= _filters(wheres)
    from ccagent.stores.jobstats.client import ask_top
    from ccagent.stores.jobstats.tables import format_top

    answer = ask_top(place, values)
    click.echo(format_top(answer, form), nl=False)
    if answer.note and form != "json":
        click.echo(answer.note, err=True)


@jobstats.command()
@click.option("--every", metavar="DURATION", default="10s", show_default=True, help="Refresh.")
@click.option("--once", is_flag=True, help="Print the tables once, then exit.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON once, then exit.")
@click.option("--at", metavar="TIME", help="An earlier time, such as 14:10; prints once.")
@click.option("--window", metavar="DURATION", help="Maximum age of records; by default 5m.")
@click.option(
    "--sort",
    type=click.Choice(["share", "bytes", "metadata", "latency"]),
    default="share",
    show_default=True,
    help="Order of jobs, largest first.",
)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True)
@click.option("--where", "wheres", metavar="NAME=VALUE", multiple=True, help="As in top.")
@_with_place
def live(*, every: str, once: bool, is_json: bool, wheres: tuple[str, ...], **options: Any) -> None:
    """Show who uses the file systems now: targets above, jobs below, the largest share first."""
    values, place = _split(options, "at", "window", "sort", "limit")
    values |= _filters(wheres)
    import msgspec

    from ccagent.config.duration import Duration
    from ccagent.stores.jobstats.client import ask_live
    from ccagent.stores.jobstats.tables import format_live

    try:
        seconds = max(1.0, Duration(every).seconds)
    except ValueError as error:
        raise click.UsageError(f"--every: {error}") from None
    answer = ask_live(place, values)
    if is_json:
        click.echo(msgspec.json.encode(answer))
    elif once or options["at"] or not (sys.stdin.isatty() and sys.stdout.isatty()):
        click.echo(format_live(answer), nl=False)
    else:
        from ccagent.stores.jobstats.tables import show_live

        show_live(lambda changed: ask_live(place, values | changed), answer, seconds)


@jobstats.command()
@_with_range
@click.option("--series", is_flag=True, help="Also totals by target, and rates over time.")
@click.option("--step", metavar="DURATION", help="Rates in even steps, interpolated.")
@click.option("--format", "form", type=_FORMS, default="table", show_default=True)
@click.argument("job")
@_with_place
def job(job: str, *, series: bool, form: Any, **options: Any) -> None:
    """Show the I/O of JOB by file system, and its rank; exit status 1 if JOB is unknown."""
    values, place = _split(options, "step")
    from ccagent.stores.jobstats.client import ask_job
    from ccagent.stores.jobstats.tables import format_job

    answer = ask_job(place, job, values)
    if answer is None:
        click.echo(f"no such job: {job!r}", err=True)
        sys.exit(1)
    click.echo(format_job(answer, form, has_series=series or "step" in values), nl=False)


@jobstats.command()
@_with_range
@click.option("--anonymous", is_flag=True, help="Omit targets, ids, users, nodes and programs.")
@click.argument("target", type=click.Path())
@_with_place
def export(target: str, *, anonymous: bool, **options: Any) -> None:
    """Write observations to the file TARGET, which ends with .parquet or .csv."""
    values, place = _split(options)
    if anonymous:
        values["anonymous"] = "1"
    from ccagent.stores.jobstats.client import read_export
    from ccagent.stores.jobstats.export import write_export

    count = write_export(read_export(place, values), target, is_anonymous=anonymous)
    click.echo(f"exported: {count} observations")


def _filters(wheres: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of --where."""
    values: dict[str, str] = {}
    for where in wheres:
        name, equals, value = where.partition("=")
        if not equals or name not in GROUPS:
            raise click.UsageError(f"--where: expected NAME=VALUE with one of {', '.join(GROUPS)}")
        values[name] = value
    return values


def _split(options: dict[str, Any], *names: str) -> tuple[dict[str, str], StorePlace]:
    """Return the parameters of the time range and those with a name, and the store's address."""
    from ccagent.stores.jobstats.client import StorePlace
    from ccagent.stores.jobstats.commands import need_query_packages

    values = {
        name.rstrip("_"): str(options[name])
        for name in ("last", "from_", "to", *names)
        if options.get(name)
    }
    need_query_packages()
    return values, StorePlace(
        options["url"],
        options["database"],
        options["token_file"],
        options["password_file"],
        options["ca_file"],
    )
