"""The command `ccagent job`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ccagent.views.job.mounts import JobMounts
    from ccagent.views.job.rules import JobReport
    from ccagent.views.settings import ViewSettings

_WIDEST = 120
NO_DATA, UNKNOWN = 3, 1
"""Exit status for a job without samples, and for an unknown job. UNKNOWN has precedence."""


@click.command("job")
@click.argument("jobs", metavar="ID...", nargs=-1, required=True)
@click.option("--cluster", metavar="NAME", default="", help="Cluster of the job.")
@click.option("--store", metavar="URL", default="", help="Metric store to query.")
@click.option("--token-file", metavar="FILE", default="", help="File with the store's token.")
@click.option("--local", "is_local", is_flag=True, help="Use this node only, not the store.")
@click.option("--json", "form", flag_value="json", help="Print JSON, one line per job.")
@click.option(
    "--js1",
    "form",
    flag_value="js1",
    help="Print the summary of jobstats for Slurm's AdminComment.",
)
@click.option("--plain", "form", flag_value="plain", help="Print without bars and colours.")
@click.option(
    "--config",
    "path",
    metavar="FILE",
    help="Settings; default: ~/.config/ccagent/views.toml, else /etc/ccagent-views.toml.",
)
def job(
    *,
    jobs: tuple[str, ...],
    cluster: str,
    store: str,
    token_file: str,
    is_local: bool,
    form: str | None,
    path: str | None,
) -> None:
    """Show how well jobs used their allocation, and give advice.

    Query the metric store; without a store, this node for its running jobs. The exit status is 1
    for an unknown job, 3 for a job without data.
    """
    from ccagent import log
    from ccagent.errors import ConfigurationError
    from ccagent.views.settings import load_views
    from ccagent.views.terminal import print_lines

    log.configure(0, "error", is_brief=True)
    for one in jobs:
        _check_id(one)
    settings = load_views(path, store=store, token_file=token_file)
    status, is_local = 0, is_local or not settings.store
    for number, one in enumerate(jobs):
        try:
            report, mounts = _make_report(one, cluster, settings, is_local=is_local)
            lines = _format(one, report, form, mounts)
        except ConfigurationError as error:
            # Continue with the other jobs. The errors of an unreachable store end the command.
            for problem in error.problems:
                log.write_error(problem)
            status = UNKNOWN
            continue
        if number and form not in {"json", "js1"}:
            click.echo()
        print_lines(lines)
        if not report.figures.samples:
            status = status or NO_DATA
    sys.exit(status)


def _check_id(text: str) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise click.UsageError(
            f"{text!r} is not a job number; for a task of an array or a step use JobIDRaw of"
            " sacct, without the part after the dot"
        )


def _make_report(
    job: str, cluster: str, settings: ViewSettings, *, is_local: bool
) -> tuple[JobReport, JobMounts | None]:
    """Return the report of a job, and its mounts if they are known.

    Raise ConfigurationError if the job is unknown or has an impossible number, another CcagentError
    if the store fails.
    """
    from ccagent.errors import ConfigurationError
    from ccagent.views.job.rules import make_report

    if is_local:
        from ccagent.machine.node import Node
        from ccagent.views.job.local import measure_here, read_mounts

        mounts = read_mounts(Node(), int(job))
        return make_report(measure_here(int(job)), settings.thresholds, mounts), mounts
    import time

    from ccagent.views.job.measuring import measure_job
    from ccagent.views.job.store_client import StoreClient

    client, now = StoreClient(settings), time.time()
    facts = client.find_job(job, cluster)
    series = client.read_series(facts, now)
    try:
        figures = measure_job(facts, series, now, settings.hardware())
        found = client.read_mounts(facts, now)
        return make_report(figures, settings.thresholds, found), found
    except OverflowError as error:
        text = f"job {job}: a number of {client.place} is impossible: {error}"
        raise ConfigurationError(text) from error


def _format(job: str, report: JobReport, form: str | None, mounts: JobMounts | None) -> list[str]:
    """Return the lines of a report. mounts: of the job, if they are known.

    Raise ConfigurationError for an impossible number of the store.
    """
    from ccagent.errors import ConfigurationError
    from ccagent.views.job.formats import encode_report, encode_summary, format_report
    from ccagent.views.terminal import find_style, find_width

    try:
        if form == "json":
            return [encode_report(report, mounts).decode()]
        if form == "js1":
            return [encode_summary(report)]
        style, width = find_style(is_plain=form == "plain"), min(_WIDEST, find_width())
        return format_report(report, style, width, mounts).splitlines()
    except (OverflowError, ValueError) as error:
        raise ConfigurationError(f"job {job}: a number is impossible: {error}") from error
