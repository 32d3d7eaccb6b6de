"""The agent `energy`: energy of the node and of each of its jobs; its keys."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ccagent.agents.base import GpuSettings
from ccagent.config.duration import Duration

RaplAccess = Literal["auto", "perf", "powercap", "off"]

MeterName = Literal["pm-counters", "hwmon", "dcmi"]

_SHORTEST_DCMI = 10.0
_MOST_WATTS = 10_000


class EnergySettings(GpuSettings, frozen=True, kw_only=True):
    """The keys of [agents.energy]."""

    rapl: Annotated[
        RaplAccess, Meta(description="access to RAPL; auto: perf if permitted, else powercap")
    ] = "auto"
    meters: Annotated[
        tuple[MeterName, ...],
        Meta(
            description="meters of the node to use if present; dcmi runs a program that queries"
            " the BMC"
        ),
    ] = ("pm-counters", "hwmon")
    dcmi_command: Annotated[
        tuple[str, ...],
        Meta(
            description="program and arguments that print the power in the format of ipmi-dcmi or"
            " ipmitool; empty: the installed one"
        ),
    ] = ()
    dcmi_every: Annotated[
        Duration, Meta(description="interval of queries of the BMC, at least 10s")
    ] = Duration("30s")
    dcmi_time_limit: Annotated[
        Duration, Meta(description="time after which the program is killed")
    ] = Duration("20s")
    idle_package: Annotated[
        float,
        Meta(ge=0, le=_MOST_WATTS, description="W of an idle package with its cores; 0: learned"),
    ] = 0.0
    idle_dram: Annotated[
        float,
        Meta(ge=0, le=_MOST_WATTS, description="W of the idle memory of a socket; 0: learned"),
    ] = 0.0
    idle_card: Annotated[
        float, Meta(ge=0, le=_MOST_WATTS, description="W of an idle card; 0: learned")
    ] = 0.0
    ratio: Annotated[
        float,
        Meta(
            ge=1,
            le=100,
            description="assumption: watts per CPU second of jobs on one socket differ at most"
            " by this factor",
        ),
    ] = 2.0
    memory_ratio: Annotated[
        float,
        Meta(
            ge=1,
            le=1000,
            description="assumption: memory watts per CPU second of jobs on one socket differ at"
            " most by this factor",
        ),
    ] = 15.0
    counter_error: Annotated[
        float, Meta(ge=0, le=1, description="assumption: relative error of energy counters")
    ] = 0.05
    estimate_error: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="assumption: relative error of integrated power, and of AMD's model",
        ),
    ] = 0.10
    names: Annotated[
        Literal["tags", "flat"],
        Meta(
            description="tags: job_energy with the tags part and share; flat: job_energy_cpu_active"
            " and so on, for stores that ignore such tags"
        ),
    ] = "tags"
    state_file: Annotated[
        str, Meta(description="file of accounts and idle power, kept across restarts; empty: none")
    ] = ""
    scontrol: Annotated[
        str, Meta(description="the program scontrol, the last source of a job's cards")
    ] = "scontrol"
    squeue: Annotated[
        str, Meta(description="the program squeue, the last source of a job's user")
    ] = "squeue"
    sacct: Annotated[
        str,
        Meta(
            description="the program sacct, for ConsumedEnergyRaw of ended jobs, to compare;"
            " empty: not used"
        ),
    ] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dcmi_every.seconds < _SHORTEST_DCMI:
            raise ValueError("dcmi-every: at least 10s")
        if self.dcmi_command and not self.dcmi_command[0]:
            raise ValueError("dcmi-command: without a program")
        if self.state_file and not self.state_file.startswith("/"):
            raise ValueError("state-file: an absolute path is needed")
