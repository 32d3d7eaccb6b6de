"""The command `ccagent usage`: energy, CO2 and cost of ended jobs, by user or project."""

from __future__ import annotations

import sys

import click


@click.command("usage")
@click.option("--by", type=click.Choice(["user", "project", "cluster"]), default="project",
              show_default=True, help="What to sum by.")  # fmt: skip
@click.option("--last", default="30d", show_default=True, metavar="TIME",
              help="Jobs that ended in this time.")  # fmt: skip
@click.option("--each", type=click.Choice(["day", "month"]), help="Sums of each day or month.")
@click.option("--cluster", metavar="NAME", default="", help="Jobs of this cluster only.")
@click.option("--user", metavar="NAME", default="", help="Jobs of this user only.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table",
              show_default=True, help="Output format.")  # fmt: skip
@click.option("--store", metavar="URL", default="", help="Metric store to query.")
@click.option("--token-file", metavar="FILE", default="", help="File with the store's token.")
@click.option(
    "--config",
    "path",
    metavar="FILE",
    help="Settings; default: ~/.config/ccagent/views.toml, else /etc/ccagent-views.toml.",
)
def usage(
    *,
    by: str,
    last: str,
    each: str | None,
    cluster: str,
    user: str,
    form: str,
    store: str,
    token_file: str,
    path: str | None,
) -> None:
    """Show energy, CO2 and cost of ended jobs.

    Query the metric store. A job counts at its end.
    """
    import time

    from ccagent import log
    from ccagent.config.duration import Duration
    from ccagent.errors import ConfigurationError
    from ccagent.views.job.formats import format_csv, format_table
    from ccagent.views.job.store_client import StoreClient
    from ccagent.views.settings import load_views

    log.configure(0, "error", is_brief=True)
    settings = load_views(path, store=store, token_file=token_file)
    if not settings.store:
        raise ConfigurationError("usage: name a store with --store URL, or in views.toml")
    try:
        seconds = int(Duration(last).seconds)
    except ValueError as error:
        raise click.UsageError(f"--last: {error}") from error
    end = int(time.time())
    wanted = {"by": by, "each": each or "", "from": str(max(0, end - seconds)), "to": str(end),
              "cluster": cluster, "user": user}  # fmt: skip
    answer = StoreClient(settings).read_usage({key: one for key, one in wanted.items() if one})
    if form == "json":
        import msgspec

        click.echo(msgspec.json.encode(answer))
    elif form == "csv":
        sys.stdout.write(format_csv(answer))
    else:
        from ccagent.views.terminal import print_lines

        print_lines(format_table(answer))
