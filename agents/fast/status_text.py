"""Texts that `ccagent fast` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ccagent.errors import ConfigurationError, NotHereError
from ccagent.log import printable
from ccagent.machine.clock import timestamp
from ccagent.senders import describe_sender

if TYPE_CHECKING:
    from ccagent.agents.fast.messages.structures import BandwidthResponse


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


def status_text(found: dict[str, Any]) -> str:
    """Return the state of the agent for a terminal."""
    if not found:
        return "no broker is configured; KPIs go only to the sinks\n"
    lines = [f"broker         {found['broker']}", f"state          {found['state']}"]
    if found.get("error"):
        lines.append(f"error          {found['error']}")
    lines.append(_configuration(found.get("configuration")))
    waiting, dropped = found.get("answers-waiting", 0), found.get("messages-dropped", 0)
    lines.append(
        f"answers        {waiting} waiting; {dropped} KPI reports dropped,"
        f" {found.get('rounds-skipped', 0)} rounds skipped"
    )
    for machine in found.get("machines", []):
        state = " (suspended)" if machine["suspended"] else ""
        lines.append(f"machine        {machine['name']}, process {machine['process-id']}{state}")
    lines += [f"not monitored  job {job}" for job in found.get("stopped-jobs", [])]
    for job in found.get("job-status", []):
        migration = "may be migrated" if job["migration"] else "must not be migrated"
        lines.append(f"application    job {job['job']}: {migration}; {', '.join(job['supported'])}")
    lines += [f"sender         {describe_sender(each)}" for each in found.get("senders", [])]
    kpis = found.get("kpis")
    if kpis:
        lines.append(f"last KPIs      {timestamp(kpis['time'])}")
        lines += _values(kpis["node"], "node")
        for each in kpis["applications"]:
            name = f"job {each['job-id']}" if each["job-id"] else f"machine {each['vm-name']}"
            lines += _values(each["values"], name)
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


def _configuration(held: object) -> str:
    if not isinstance(held, dict):
        return "configuration  none yet"
    values = cast("dict[str, Any]", held)
    names = ", ".join(values["categories"]) or "all KPIs"
    return (
        f"configuration  {names}; every {values['repeat']} s;"
        f" set by {values['sender']} at {timestamp(values['time'])}"
    )


def _values(values: dict[str, Any], name: str) -> list[str]:
    return [
        f"  {name:16} {kpi:38} {value if isinstance(value, str) else f'{value:,.1f}'}"
        for kpi, value in values.items()
    ]
