"""The command `ccagent demo`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.views.demo.running import DemoServer


@click.command()
@click.option(
    "--web",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:0",
    help="Address of the pages; port 0: a free port.",
)
@click.option("--nodes", type=click.IntRange(4, 2000), default=32, help="Simulated nodes.")
def demo(web: str, nodes: int) -> None:
    """Show the pages with a simulated cluster and this node until Ctrl-C, then delete all data."""
    from ccagent import log
    from ccagent.stores.metrics.commands import need_store_extra

    began = time.monotonic()
    log.configure(0)
    need_store_extra(with_pages=True)
    from ccagent.views.demo.running import run_demo

    def announce(server: DemoServer) -> None:
        click.echo(server.describe(began), nl=False)

    try:
        run_demo(web, nodes, announce)
    except OSError as error:
        raise ConfigurationError(f"the demo can't start: {error}") from error
