"""The additional command `ccagent jobio show`, and its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import Common, add_common_options, make_group
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.agents.jobio.usage import MountUse, NetworkUse
    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options

_HEADER: tuple[str, ...] = (
    "JOB", "MOUNT", "TYPE", "READ B", "WRITTEN B", "READS", "WRITES", "METADATA", "SOURCE",
)  # fmt: skip
_NETWORK_HEADER = ("JOB", "NETWORK", "", "RECEIVED B", "SENT B", "RECEIVES", "SENDS")


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command as a group that contains `show`.

    configure: returns the configuration of the agent.
    """
    group = make_group(command)

    @group.command()
    @click.option("--job", type=click.IntRange(min=0), help="Only this job; 0: outside of jobs.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON with all counters.")
    @add_common_options
    def show(job: int | None, as_json: bool, common: Common) -> None:
        """Show the I/O of each job by mount, and its network traffic.

        The counters start at 0 when the programs are loaded. The exit status is 1 if the programs
        are not loaded, or this user may not read them.
        """
        from ccagent.agents.jobio.agent import JobIoSettings
        from ccagent.agents.jobio.usage import read_totals

        configuration = configure(common.options)
        settings = configuration.agents["jobio"]
        if not isinstance(settings, JobIoSettings):
            raise ConfigurationError(f"{configuration.place}: agents.jobio: another agent's")
        node = configuration.settings.make_node()
        mounts, network, lost = read_totals(node, settings.directory, job)
        if as_json:
            import json

            click.echo(json.dumps(totals_document(mounts, network, lost)))
            return
        click.echo(totals_text(mounts, network), nl=False)
        if lost:
            click.echo(f"ccagent: {lost} calls are not counted: the table was full", err=True)

    return group


def totals_text(mounts: Iterable[MountUse], network: Iterable[NetworkUse]) -> str:
    """Return the tables of mounts and network for a terminal."""
    from ccagent.agents.jobio import usage

    columns = (
        usage.bytes_read, usage.bytes_written, usage.read_calls, usage.write_calls,
        usage.metadata_operations,
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [_HEADER]
    for use in mounts:
        name = (str(use.job or "-"), use.mount.point, use.mount.type)
        numbers = (str(column(use.total)) for column in columns)
        rows.append((*name, *numbers, use.mount.source))
    text = _align(rows)
    rows = [_NETWORK_HEADER]
    for traffic_use in network:
        kind = f"{traffic_use.protocol}{' loopback' if traffic_use.is_loopback else ''}"
        traffic = traffic_use.total
        moved = (traffic.received_bytes, traffic.sent_bytes, traffic.receives, traffic.sends)
        rows.append((str(traffic_use.job or "-"), kind, "", *map(str, moved)))
    return text if len(rows) == 1 else f"{text}\n{_align(rows)}"


def totals_document(
    mounts: Iterable[MountUse], network: Iterable[NetworkUse], lost: int
) -> dict[str, Any]:
    """Return mounts and network as an object for JSON, with all counters."""
    return {
        "mounts": [
            {"job": use.job, **use.mount._asdict(), **use.total._asdict()} for use in mounts
        ],
        "network": [
            {"job": job, "protocol": protocol, "loopback": is_loopback, **total._asdict()}
            for job, protocol, is_loopback, _, total in network
        ],
        "lost": lost,
    }


def _align(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if 3 <= number < 8 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)
