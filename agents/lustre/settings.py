"""The keys of [agents.lustre], and their checks."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from ccagent.agents.base import AgentSettings
from ccagent.agents.lustre.jobstats.entry import IdFormat
from ccagent.agents.lustre.jobstats.source import Source
from ccagent.config.duration import Duration
from ccagent.errors import nearest


class LustreSettings(AgentSettings, frozen=True, kw_only=True):
    """The keys of [agents.lustre]."""

    jobstats: Annotated[bool, Meta(description="read jobstats; false on clients")] = True
    statistics: Annotated[
        tuple[str, ...],
        Meta(
            description="line protocol: further statistics: stats, md-stats, capacity, "
            "exports, recovery, health, locks, brw-stats, lnet, llite"
        ),
    ] = ()
    source: Annotated[
        Source, Meta(description="job_stats files, lctl, or auto: files if present")
    ] = "auto"
    lctl: Annotated[str, Meta(description="the program lctl")] = "lctl"
    input: Annotated[
        str, Meta(description="a recorded dump of lctl get_param to read instead; empty: none")
    ] = ""
    target_time_limit: Annotated[
        Duration, Meta(description="time after which a target is skipped until the next reading")
    ] = Duration("20s")
    formats: Annotated[
        tuple[str, ...], Meta(description="formats of jobid_name on clients, tried in order")
    ] = ("%j:%u:%H", "%j:%u:%h", "%e.%u", "%j")
    namespaces: Annotated[
        dict[str, str],
        Meta(description="namespace UUIDs of time_series_id, by format; without one no id is sent"),
    ] = {}
    malformed_namespace: Annotated[
        str, Meta(description="namespace UUID of time_series_id for ids in no format; empty: none")
    ] = ""
    short_hosts: Annotated[
        bool, Meta(description="cut nodename at the first dot; the series stay distinct")
    ] = False
    user_names: Annotated[
        bool, Meta(description="add names of users that this server knows; not for an input")
    ] = True
    sparse: Annotated[bool, Meta(description="omit zero counters; the receiver assumes 0")] = False
    details: Annotated[
        tuple[Literal["usecs", "min", "max", "sumsq", "hist"], ...],
        Meta(
            description="numbers of operations besides samples and bytes, where the server has "
            "them: usecs (sum of times), min, max, sumsq, hist"
        ),
    ] = ("usecs",)
    system_entries: Annotated[
        Literal["keep", "aggregate", "leave-out"],
        Meta(description="entries of system-users and system-executables; always counted"),
    ] = "keep"
    system_users: Annotated[tuple[int, ...], Meta(description="user ids of system entries")] = (0,)
    system_executables: Annotated[
        tuple[str, ...], Meta(description="executables of system entries")
    ] = ("slurmd", "slurmstepd", "sshd", "ccagent")
    rates: Annotated[bool, Meta(description="line protocol: rates besides the counters")] = False
    cleanup_interval: Annotated[Duration, Meta(description="the servers' job_cleanup_interval")] = (
        Duration("10m")
    )
    batch_size: Annotated[int, Meta(ge=1, description="records in one JSON array")] = 1000
    state_file: Annotated[
        str, Meta(description="file of known entries, kept across restarts; empty: only in memory")
    ] = ""
    max_entries: Annotated[
        int, Meta(ge=1, description="known entries to keep, including disappeared ones")
    ] = 1_000_000
    max_jobs: Annotated[
        int, Meta(ge=1, description="line protocol: jobs and targets with kept totals")
    ] = 100_000

    def __post_init__(self) -> None:
        if self.statistics:
            from ccagent.agents.lustre.statistics import GROUPS

            for name in self.statistics:
                if name not in GROUPS:
                    raise ValueError(f"statistics: {name!r} is unknown{nearest(name, [*GROUPS])}")
        for form in self.formats:
            IdFormat(form)
        for form, namespace in self.namespaces.items():
            if form not in self.formats:
                raise ValueError(f"namespaces: {form!r} is none of the formats")
            _check_uuid("namespaces", namespace)
        if self.malformed_namespace:
            _check_uuid("malformed-namespace", self.malformed_namespace)
        if self.state_file and not self.state_file.startswith("/"):
            raise ValueError("state-file: an absolute path is needed")


def _check_uuid(key: str, text: str) -> None:
    try:
        UUID(text)
    except ValueError as error:
        raise ValueError(f"{key}: {text!r} is no UUID") from error
