"""Scheduler, fair share, licences and reservations of Slurm, as slurm_exporter names them.

sshare prints fields, scontrol pairs NAME=VALUE on one line. Of sdiag the text is read: its labels
are the same since Slurm 17.11, but JSON needs a plugin that packages may lack.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from ccagent.errors import UnparsableError
from ccagent.exporter.exposition import counter, gauge
from ccagent.exporter.slurm_exporter import CachedSlurmCollector, run_program
from ccagent.machine.hostlist import expand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Family
    from ccagent.exporter.slurm_exporter import Values
    from ccagent.machine.node import Node

_SDIAG: dict[tuple[str, str], Family] = {
    (part, label): (counter if name.endswith("_total") else gauge)(
        f"slurm_scheduler_{name}", f"{text}, from sdiag."
    )
    for part, label, name, text in (
        ("", "Server thread count", "threads", "Threads of slurmctld"),
        ("", "Agent queue size", "queue_size", "Messages that slurmctld has to send"),
        ("", "DBD Agent queue size", "dbd_queue_size", "Messages for slurmdbd"),
        *(
            ("", f"Jobs {what}", f"jobs_{what}", f"Jobs {what} since the last reset")
            for what in ("submitted", "started", "completed", "canceled", "failed")
        ),
        ("Main", "Last cycle", "last_cycle", "Last cycle of the main scheduler in us"),
        ("Main", "Mean cycle", "mean_cycle", "Mean cycle of the main scheduler in us"),
        ("Main", "Cycles per minute", "cycle_per_minute", "Cycles per minute"),
        ("Backfilling", "Last cycle", "backfill_last_cycle", "Last backfill cycle in us"),
        ("Backfilling", "Mean cycle", "backfill_mean_cycle", "Mean backfill cycle in us"),
        ("Backfilling", "Depth Mean", "backfill_depth_mean", "Mean depth of backfill cycles"),
        (
            "Backfilling", "Total backfilled jobs (since last slurm start)",
            "backfilled_jobs_since_start_total", "Backfilled jobs since the start of slurmctld",
        ),
        (
            "Backfilling", "Total backfilled jobs (since last stats cycle start)",
            "backfilled_jobs_since_cycle_total", "Backfilled jobs since the last reset",
        ),
        (
            "Backfilling", "Total backfilled heterogeneous job components",
            "backfilled_heterogeneous_total", "Backfilled components of heterogeneous jobs",
        ),
    )
}  # fmt: skip
"""By part of the output, and label."""
_RPCS = {
    part: tuple(
        gauge(f"{stem}{suffix}", f"{text} by {label}, from sdiag.", label)
        for suffix, text in (
            ("", "Calls"), ("_avg_time", "Mean time of a call in us"),
            ("_total_time", "Total time of calls in us"),
        )
    )
    for part, stem, label in (
        ("by message type", "slurm_rpc_stats", "operation"),
        ("by user", "slurm_user_rpc_stats", "user"),
    )
}  # fmt: skip
_PART = re.compile(r"(Main|Backfilling|Remote Procedure Call statistics) ?(.*)", re.ASCII)
_RPC = re.compile(
    r"\s*(\S+)\s+\(\s*[0-9]+\) count:([0-9]+)\s+ave_time:([0-9]+)\s+total_time:([0-9]+)", re.ASCII
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)


_SELDOM = 10
"""Slurm computes fair share every five minutes (PriorityCalcPeriod); the rest changes less."""


class SchedulerCollector(CachedSlurmCollector):
    """Statistics of slurmctld: cycles of its schedulers, and calls."""

    programs = "sdiag"

    def read_values(self, node: Node) -> Values:
        """Run sdiag."""
        return parse_sdiag(run_program(node, [self.settings.sdiag]))


def parse_sdiag(text: str) -> Values:
    """Parse the output of sdiag. Unknown lines are skipped."""
    values: Values = {}
    part = kind = ""
    for line in text.split("\n"):
        found = _PART.match(line)
        if found is not None:
            part, kind = found[1], found[2]
        call = _RPC.match(line)
        if call is not None and kind in _RPCS:
            for family, number in zip(_RPCS[kind], call.groups()[1:], strict=True):
                values.setdefault(family, {})[call[1],] = int(number)
            continue
        label, _, number = line.strip().partition(":")
        known = _SDIAG.get((part if line[:1].isspace() else "", label))
        if known is not None and _NUMBER.fullmatch(number.strip()):
            values.setdefault(known, {}).setdefault((), float(number))
    return values


_SHARES = (
    ("fairshare_raw_shares", "Shares"),
    ("fairshare_norm_shares", "Share of all shares"),
    ("fairshare_raw_usage_cpu_seconds", "Decayed usage in CPU seconds"),
    ("fairshare_norm_usage", "Share of the usage"),
    ("fairshare", "Fair share factor, 0 to 1"),
)
_SHARE_FAMILIES = {
    kind: tuple(gauge(f"slurm_{kind}_{name}", f"{text}, from sshare.", *labels)
                for name, text in _SHARES)
    for kind, labels in (("account", ("account",)), ("user", ("account", "user")))
}  # fmt: skip
_SHARE_FIELDS = "Account,User,RawShares,NormShares,RawUsage,NormUsage,FairShare"


class FairshareCollector(CachedSlurmCollector):
    """Shares and usage of accounts and users."""

    programs = "sshare"
    intervals = _SELDOM

    def read_values(self, node: Node) -> Values:
        """Run sshare."""
        command = [self.settings.sshare, "--all", "--parsable2", "--noheader",
                   f"--format={_SHARE_FIELDS}"]  # fmt: skip
        return parse_sshare(run_program(node, command))


def parse_sshare(text: str) -> Values:
    """Parse the lines of sshare. Of an account or user with several lines the first is taken.

    Empty fields, and shares `parent`, have no value.
    """
    values: Values = {}
    for line in text.split("\n"):
        account, *rest = line.strip().split("|")
        if len(rest) != 1 + len(_SHARES):
            continue
        user, *numbers = rest
        labels = (account, user) if user else (account,)
        for family, number in zip(_SHARE_FAMILIES["user" if user else "account"], numbers,
                                  strict=True):  # fmt: skip
            if _NUMBER.fullmatch(number):
                values.setdefault(family, {}).setdefault(labels, float(number))
    return values


_LICENSES = {
    field: gauge(f"slurm_license_{name}", f"{field} licences, from scontrol.", "license")
    for field, name in (
        ("Total", "total"), ("Used", "used"), ("Free", "free"), ("Reserved", "reserved"),
    )
}  # fmt: skip


class LicensesCollector(CachedSlurmCollector):
    """Licences that Slurm counts."""

    programs = "scontrol"
    intervals = _SELDOM

    def read_values(self, node: Node) -> Values:
        """Run scontrol."""
        values: Values = {}
        for found in _show(self, node, "licenses"):
            for field, family in _LICENSES.items():
                if found.get(field, "").isdecimal() and "LicenseName" in found:
                    values.setdefault(family, {})[found["LicenseName"],] = int(found[field])
        return values


_RESERVATION = gauge(
    "slurm_reservation_info", "Always 1: a reservation, from scontrol.",
    "reservation_name", "state", "users", "nodes", "partition", "flags",
)  # fmt: skip
_RESERVATION_WORDS = ("ReservationName", "State", "Users", "Nodes", "PartitionName", "Flags")
_RESERVATION_NUMBERS = {
    field: gauge(f"slurm_reservation_{name}", f"{text}, from scontrol.", "reservation_name")
    for field, name, text in (
        ("StartTime", "start_time_seconds", "Start in seconds since 1970"),
        ("EndTime", "end_time_seconds", "End in seconds since 1970"),
        ("NodeCnt", "node_count", "Nodes of the reservation"),
        ("CoreCnt", "core_count", "Cores of the reservation"),
    )
}
_STATES = ("alloc", "idle", "mix", "down", "drain", "planned", "other", "healthy")
_RESERVED_NODES = {
    state: gauge(f"slurm_reservation_nodes_{state}", f"Nodes of a reservation: {state}.",
                 "reservation")
    for state in _STATES
}  # fmt: skip
_BASES = {"ALLOCATED": "alloc", "IDLE": "idle", "MIXED": "mix", "DOWN": "down"}
_UP = ("alloc", "idle", "mix")


class ReservationsCollector(CachedSlurmCollector):
    """Reservations, and the states of their nodes."""

    programs = "scontrol"
    intervals = _SELDOM

    def read_values(self, node: Node) -> Values:
        """Run scontrol, for the nodes only if there is a reservation."""
        values: Values = {}
        reserved: dict[str, list[str]] = {}
        for found in _show(self, node, "reservations"):
            name = found.get("ReservationName")
            if name is None:
                continue
            words = (found.get(field, "") for field in _RESERVATION_WORDS)
            labels = tuple("" if word == "(null)" else word for word in words)
            values.setdefault(_RESERVATION, {})[labels] = 1
            for field, family in _RESERVATION_NUMBERS.items():
                if found.get(field, "").isdecimal():
                    values.setdefault(family, {})[name,] = int(found[field])
            with suppress(UnparsableError):
                for each in expand(found.get("Nodes", "")):
                    reserved.setdefault(each, []).append(name)
        if reserved:
            add_reserved_nodes(values, _show(self, node, "nodes"), reserved)
        return values


def add_reserved_nodes(
    values: Values, nodes: Iterator[dict[str, str]], reserved: dict[str, list[str]]
) -> None:
    """Count the nodes of each reservation by state, such as `MIXED+DRAIN+RESERVED`.

    reserved: reservations by node. Slurm 23.11 does not name them with the node.
    """
    for found in nodes:
        base, *flags = found.get("State", "").replace("*", "").split("+")
        state = _BASES.get(base, "other")
        states = {state} | {flag.lower() for flag in flags if flag in {"DRAIN", "PLANNED"}}
        if state in _UP and "drain" not in states:
            states.add("healthy")
        for name in reserved.get(found.get("NodeName", ""), ()):
            for each, family in _RESERVED_NODES.items():
                rows = values.setdefault(family, {})
                rows[name,] = rows.get((name,), 0) + (each in states)


def _show(collector: CachedSlurmCollector, node: Node, what: str) -> Iterator[dict[str, str]]:
    """Yield the records of `scontrol show`, one per line, as pairs of NAME=VALUE."""
    command = [collector.settings.scontrol, "--all", "--oneliner", "show", what]
    for line in run_program(node, command).split("\n"):
        pairs = (word.partition("=") for word in line.split())
        yield {name: value for name, equals, value in pairs if equals}
