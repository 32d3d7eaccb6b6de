"""The command `ccagent try`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.views.trial.running import TrialServer


@click.command("try")
@click.option(
    "--web",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:0",
    help="Address of the pages; port 0: a free port.",
)
def trial(web: str) -> None:
    """Try everything on this machine; Ctrl-C deletes all data.

    Runs the daemon with its exporter, the metric store and its pages. Jobs are those of Slurm, if
    it answers here, else simulated ones on simulated nodes.
    """
    from ccagent import log
    from ccagent.stores.metrics.commands import need_store_extra

    began = time.monotonic()
    log.configure(0)
    need_store_extra(with_pages=True)
    from ccagent.views.trial.running import SimulatedJobs, has_slurm, run_trial

    def announce(server: TrialServer) -> None:
        click.echo(_describe(server, time.monotonic() - began), nl=False)

    try:
        run_trial(web, None if has_slurm() else SimulatedJobs, announce)
    except OSError as error:
        from ccagent.net.error_texts import explain_listening

        raise ConfigurationError(f"--web: {explain_listening(error)}") from error


def _describe(server: TrialServer, seconds: float) -> str:
    """Return the text for the user: addresses and commands."""
    from ccagent.views.trial.running import FIRST_JOB, HERE, LIVE, SIMULATED

    pages = server.pages.url
    jobs = f"{pages}cluster/{HERE}/jobs   of Slurm, from now on\n"
    if server.is_simulated:
        jobs = (
            f"{pages}cluster/{SIMULATED}/jobs   simulated, on simulated nodes\n"
            f"  a report   ccagent job {FIRST_JOB} --store http://127.0.0.1:{server.port}\n"
        )
    return (
        f"ccagent try: {pages}\n"
        f"  this node  {server.node_page}   live, every {LIVE}\n"
        f"  jobs       {jobs}"
        f"  exporter   http://127.0.0.1:{server.exporter_port}/metrics   for Prometheus\n"
        f"Ready after {seconds:.1f} s. Ctrl-C ends everything and deletes its data.\n"
    )
