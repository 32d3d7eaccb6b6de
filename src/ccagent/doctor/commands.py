"""The command `ccagent doctor`."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from ccagent.doctor.agent_checks import Site, list_agents, open_checks
from ccagent.doctor.examination import examine
from ccagent.doctor.report import choose_exit_status, format_json, format_report

if TYPE_CHECKING:
    from ccagent.config.configuration import Configuration


def doctor(configuration: Configuration, *, is_json: bool, delivers: bool) -> int:
    """Print the findings for a configuration. Return the exit status: 0 or 1."""
    node = configuration.settings.make_node()
    with open_checks(configuration, node) as checks:
        findings = examine(Site(node, configuration, checks, delivers))
    if is_json:
        click.echo(format_json(findings))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        click.echo(format_report(findings, list_agents(configuration), width=width), nl=False)
    sys.stdout.flush()
    return choose_exit_status(findings)
