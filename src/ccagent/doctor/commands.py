"""What `ccagent doctor` does."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from ccagent.doctor.demands import Site, counted, demands_of
from ccagent.doctor.examination import examine
from ccagent.doctor.report import as_json, exit_status, report
from ccagent.machine.node import Node

if TYPE_CHECKING:
    from ccagent.config.configuration import Configuration


def doctor(configuration: Configuration, *, is_json: bool, delivers: bool) -> int:
    """Print what is found for a configuration, and give the exit status: 0 or 1."""
    settings = configuration.settings
    node = Node(hostname=settings.hostname, cluster=settings.cluster)
    findings = examine(Site(node, configuration, demands_of(configuration), delivers))
    if is_json:
        click.echo(as_json(findings).decode())
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        click.echo(report(findings, counted(configuration), width=width), nl=False)
    sys.stdout.flush()
    return exit_status(findings)
