"""Additional commands of `ccagent fast`, and the texts that they print."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ccagent.config.command_options import add_common_options, make_group
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    NotHereError,
    ProgramError,
    UnparsableError,
)
from ccagent.log import printable
from ccagent.machine.clock import timestamp
from ccagent.senders import describe_sender

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.agents.fast.messages.structures import BandwidthResponse
    from ccagent.agents.fast.scheduling import MoveProposal, NodeReading, ReferenceScheduler
    from ccagent.agents.fast.settings import FastSettings
    from ccagent.config.command_options import Common
    from ccagent.config.configuration import Configuration
    from ccagent.config.options import Options
    from ccagent.machine.node import Node


def extend_command(
    command: click.Command, configure: Callable[[Options], Configuration]
) -> click.Command:
    """Return the agent's command as a group with `status`, `mmbwmon` and `reference`.

    configure: returns the configuration of the agent.
    """
    group = make_group(command)

    @group.command()
    @click.option("--json", "as_json", is_flag=True, help="As JSON.")
    @add_common_options
    def status(as_json: bool, common: Common) -> None:
        """Show the configuration in force, its sender, the last KPIs and monitored applications.

        Exit status 1 if no daemon runs, or if it has no [agents.fast].
        """
        details = read_details(configure(common.options).settings.status_socket)
        if as_json:
            import json

            click.echo(json.dumps(details))
        else:
            click.echo(status_text(details), nl=False)

    @group.command()
    @click.option("--cores", required=True, metavar="LIST", help="Cores such as 0,1 or 0-3.")
    @add_common_options
    def mmbwmon(cores: str, common: Common) -> None:
        """Measure the available memory bandwidth of cores; needs no broker.

        Exit status 1 if the measurement failed or is invalid.
        """
        from ccagent.agents.fast.bandwidth.service import measure_now
        from ccagent.agents.fast.settings import check_extra

        check_extra("numpy", "mmbwmon")
        wanted = _core_list(cores)
        node, settings = _node_and_settings(configure(common.options))
        response = measure_now(node, wanted, settings.state_directory, ())
        click.echo(bandwidth_text(response), nl=False)
        if response.value is None or not response.is_valid:
            sys.exit(1)

    @group.command()
    @add_common_options
    def reference(common: Common) -> None:
        """Measure and keep the bandwidth of this idle node, by number of cores.

        Takes about two seconds for each number of cores. Exit status 1 if the node is not idle.
        """
        from ccagent.agents.fast.settings import check_extra

        check_extra("numpy", "reference")
        _measure_reference(*_node_and_settings(configure(common.options)))

    @group.command()
    @click.option("--nodes", default="", metavar="LIST", help="Nodes such as c1,c2; default: all.")
    @click.option("--apply/--dry-run", "applies", default=False, help="Send the tasks, or not.")
    @click.option(
        "--limit", default=50.0, show_default=True, help="CPU usage or missing bandwidth, %."
    )
    @click.option(
        "--bandwidth-limit", default=50.0, show_default=True, help="Memory bandwidth, GB/s."
    )
    @click.option(
        "--cores",
        multiple=True,
        metavar="LIST",
        help="Cores of a NUMA node, to measure and to pin machines to; repeatable.",
    )
    @click.option(
        "--vcpus",
        default=1,
        show_default=True,
        type=click.IntRange(1, 4096),
        help="Virtual CPUs of a machine, to pin.",
    )
    @click.option(
        "--seconds",
        default=10,
        show_default=True,
        type=click.IntRange(2, 3600),
        help="Read messages for this long.",
    )
    @click.option("--sign", default="", metavar="FILE", help="Sign tasks with this nkey seed.")
    @add_common_options
    def schedule(
        *,
        nodes: str,
        applies: bool,
        limit: float,
        bandwidth_limit: float,
        cores: tuple[str, ...],
        vcpus: int,
        seconds: int,
        sign: str,
        common: Common,
    ) -> None:
        """Propose to move machines away from the most loaded node, or from its loaded cores.

        The load is the memory bandwidth, if all nodes report it, else the bandwidth that mmbwmon
        found missing, else the CPU usage of machines. Exit status 1 if a task failed.
        """
        from ccagent.agents.fast.scheduling import MoveRule, ReferenceScheduler
        from ccagent.net.signatures import read_seed

        _, settings = _node_and_settings(configure(common.options))
        names = [name.strip() for name in nodes.split(",") if name.strip()]
        seed = read_seed(sign) if sign else ""
        slots = [tuple(_core_list(each)) for each in cores]
        scheduler = ReferenceScheduler(settings, names, slots, seed)
        try:
            found = _read_nodes(scheduler, seconds)
            proposals = [*MoveRule(found, limit, bandwidth_limit).proposals()]
            _propose(scheduler, proposals, vcpus if applies else 0)
            if proposals and applies:
                _read_nodes(scheduler, seconds)
        finally:
            scheduler.close()

    return group


def _read_nodes(scheduler: ReferenceScheduler, seconds: int) -> dict[str, NodeReading]:
    """Read and print what the nodes send."""
    from ccagent.agents.fast.scheduling import describe_nodes

    found = scheduler.read(seconds, max(1, seconds // 4))
    for line in describe_nodes(found):
        click.echo(printable(line))
    return found


def _propose(scheduler: ReferenceScheduler, proposals: Sequence[MoveProposal], vcpus: int) -> None:
    """Print proposals; then have them done, unless vcpus is 0. Raise ProgramError if one fails."""
    from ccagent.agents.fast.scheduling import describe_proposal

    for proposal in proposals:
        click.echo(printable(describe_proposal(proposal)))
    if not proposals:
        click.echo("no proposal: no node exceeds the limit, or no move helps")
    for proposal in proposals if vcpus else ():
        outcome = scheduler.move(proposal, vcpus)
        done = "repinned" if proposal.cores else "moved"
        status = done if outcome.is_success else f"not {done}"
        click.echo(printable(f"{proposal.machine}: {status}, {outcome.state} on {outcome.host}"))
        if not outcome.is_success:
            raise ProgramError(outcome.details)


def _measure_reference(node: Node, settings: FastSettings) -> None:
    """Measure, print and write the reference. Raise CcagentError if the node is not idle."""
    from ccagent.agents.fast.bandwidth import service
    from ccagent.machine.cpus import read_online
    from ccagent.service.private_directories import make_directory

    directory = settings.state_directory
    if not directory:
        raise ConfigurationError(
            "agents.fast.state-directory: missing; set the directory for the reference"
        )
    try:
        make_directory(directory)
    except OSError as error:
        raise CcagentError(f"{directory}: {error.strerror}") from error
    reason = service.check_cores(node, read_online(node), ())
    if reason:
        raise CcagentError(f"the node is not idle: {reason}")

    def report(count: int, bandwidth: float, share: float) -> None:
        click.echo(f"{count:5} cores {bandwidth / 1e9:9.2f} GB/s  share {share:.2f}")

    reference = service.measure_reference(node, report)
    click.echo(f"kept in {service.write_reference(directory, reference)}")


def _node_and_settings(configuration: Configuration) -> tuple[Node, FastSettings]:
    from ccagent.agents.fast.settings import FastSettings

    settings = configuration.agents["fast"]
    if not isinstance(settings, FastSettings):
        raise ConfigurationError(f"{configuration.place}: agents.fast: another agent's")
    return configuration.settings.make_node(), settings


def _core_list(text: str) -> list[int]:
    """Return the cores of a list such as `0,2-3`. Raise ConfigurationError if invalid."""
    from ccagent.agents.fast.messages.decoding import MOST_CORES
    from ccagent.machine.procfs.cpulist import parse_cpu_list

    try:
        cores = parse_cpu_list(text.encode())
    except UnparsableError as error:
        raise ConfigurationError(f"--cores: {error}") from error
    if not 0 < len(cores) <= MOST_CORES:
        raise ConfigurationError(f"--cores: 1 to {MOST_CORES} cores")
    return cores


def read_details(socket: str) -> dict[str, Any]:
    """Return the state of the agent `fast` from the running daemon.

    Raise CcagentError if missing.
    """
    from ccagent.service.status_socket import read_status

    if not socket:
        raise ConfigurationError("status-socket: none is set")
    status = read_status(socket)
    if "fast" not in status.agents:
        raise NotHereError(f"{socket}: the daemon has no [agents.fast]")
    return status.details.get("fast", {})


def status_text(status: dict[str, Any]) -> str:
    """Return the state of the agent for a terminal."""
    if not status:
        return "no broker is configured; KPIs go only to the sinks\n"
    lines = [f"broker         {status['broker']}", f"state          {status['state']}"]
    if status.get("error"):
        lines.append(f"error          {status['error']}")
    lines.append(_configuration(status.get("configuration")))
    waiting, dropped = status.get("answers-waiting", 0), status.get("messages-dropped", 0)
    lines.append(
        f"answers        {waiting} waiting; {dropped} KPI reports dropped,"
        f" {status.get('rounds-skipped', 0)} rounds skipped"
    )
    for machine in status.get("machines", []):
        state = " (suspended)" if machine["suspended"] else ""
        state += "" if machine.get("monitored", True) else " (not monitored)"
        lines.append(f"machine        {machine['name']}, process {machine['process-id']}{state}")
    lines += [f"not monitored  job {job}" for job in status.get("stopped-jobs", [])]
    for job in status.get("job-status", []):
        migration = "may be migrated" if job["migration"] else "must not be migrated"
        lines.append(f"application    job {job['job']}: {migration}; {', '.join(job['supported'])}")
    lines += [f"sender         {describe_sender(sender)}" for sender in status.get("senders", [])]
    kpis = status.get("kpis")
    if kpis:
        lines.append(f"last KPIs      {timestamp(kpis['time'])}")
        lines += _values(kpis["node"], "node")
        for application in kpis["applications"]:
            name = (
                f"job {application['job-id']}"
                if application["job-id"]
                else f"machine {application['vm-name']}"
            )
            lines += _values(application["values"], name)
    return "".join(f"{printable(line)}\n" for line in lines)


def bandwidth_text(response: BandwidthResponse) -> str:
    """Return a measurement for a terminal."""
    cores = ",".join(map(str, response.cores))
    if response.value is None:
        return f"cores {cores}: not measured: {printable(response.details)}\n"
    text = (
        f"cores {cores}: {response.bandwidth / 1e9:.2f} GB/s, {response.value:.3f} of the idle"
        f" reference; the probe ran {100 * response.cpu_share:.0f} % of its time\n"
    )
    return text if response.is_valid else f"{text}{printable(response.details)}\n"


def _configuration(held: dict[str, Any] | None) -> str:
    if held is None:
        return "configuration  none yet"
    names = ", ".join(held["categories"]) or "all KPIs"
    return (
        f"configuration  {names}; every {held['repeat']} s;"
        f" set by {held['sender']} at {timestamp(held['time'])}"
    )


def _values(values: dict[str, Any], name: str) -> list[str]:
    return [
        f"  {name:16} {kpi:38} {value if isinstance(value, str) else f'{value:,.1f}'}"
        for kpi, value in values.items()
    ]
