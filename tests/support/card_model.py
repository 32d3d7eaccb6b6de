"""Model machines with GPUs of several parts: the energy of their jobs is known exactly.

A card takes idle watts, and each job more watts for the utilisation of its part. An MI300A takes
more watts for each busy cpu, too. The meter reads files and a stand-in for the GPU libraries.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from ccagent.agents.energy.meter import EnergyMeter
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.machine.gpu.vendor import Detail
from ccagent.records.envelopes import SampleGpu
from tests.support.energy_tree import EnergyNode, make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.energy.accounts import JobAccount

CardKind = Literal["MI250X", "MI300A", "MIG", "MIG with GPM"]
KINDS: tuple[CardKind, ...] = ("MI250X", "MI300A", "MIG", "MIG with GPM")
SECONDS = 10.0
IDLE = 90.0
"""W of an idle card."""

MULTIPROCESSORS = {0: 132, 1: 60, 2: 32, 3: 16}
"""Of an H100, and of instances 3g, 2g and 1g. Source: NVIDIA's MIG User Guide."""


class CardJob(NamedTuple):
    """A job with a part of a card. watts: of a fully used card. core_watts: of a busy cpu."""

    number: int
    part: int
    meter: int
    share: float
    watts: float
    load: float
    cpus: int
    core_watts: float


class ReadCards:
    """Stands in for the libraries of a `GpuReading`, for `CardSource`."""

    def __init__(self) -> None:
        self.now = GpuReading()

    def ask(self, question: str, details: Sequence[str]) -> None:
        pass

    def reading(self, errors: list[str]) -> GpuReading:
        assert not errors
        return self.now

    def close(self) -> None:
        pass


class CardTick(NamedTuple):
    """What others read of a tick: J by card; utilisation of its part and CPU seconds by job."""

    joules: dict[int, float]
    uses: dict[int, float]
    times: dict[int, float]


class CardMachine:
    """A node with cards and jobs. truth: J by job. joules: by card so far."""

    def __init__(self, root: Path, kind: CardKind, seed: int) -> None:
        self.kind = kind
        self._chance = random.Random(seed)
        self.node = EnergyNode(root, cpus=8)
        self.parts = range(1, 4) if kind.startswith("MIG") else range(4)
        self.joules = {self._meter(part): 1.0 for part in self.parts}
        self.jobs = [self._make_job(part) for part in self.parts if part != 3 or seed % 2]
        self.truth = {job.number: 0.0 for job in self.jobs}
        self.ticks: list[CardTick] = []
        self.cards = ReadCards()
        for job in self.jobs:
            self._start(job)
        if kind == "MI300A":
            self._write_sockets()
        self._show(dict.fromkeys(self.parts, 0.0))

    def run(self, ticks: int) -> dict[int, JobAccount]:
        """Return the accounts of the jobs after so many ticks."""
        meter = EnergyMeter(make_settings(**{"gpu-vendors": ["amd"], "idle-package": 0.0}))
        cast("Any", meter.cards)._gpus = self.cards
        meter.open(self.node)
        for _ in range(ticks):
            self._work()
            meter.tick(self.node)
        meter.close()
        return meter.ledger.jobs

    def _meter(self, part: int) -> int:
        return {"MI250X": part - part % 2, "MI300A": part - part % 2}.get(self.kind, 0)

    def _make_job(self, part: int) -> CardJob:
        """Return the job of a part. On an MI300A each second job only has cpus."""
        chance, number = self._chance, part + 1
        has_card = self.kind != "MI300A" or part % 2 == 0
        share = MULTIPROCESSORS[part] / 132 if self.kind.startswith("MIG") else 0.5
        return CardJob(
            number, part, self._meter(part), share,
            watts=(300.0 if self.kind == "MI300A" else 200.0 * share) * chance.uniform(1, 2)
            if has_card else 0.0,
            load=chance.choice((0.1, 0.5, 0.9)), cpus=4,
            core_watts=4.0 * chance.uniform(1, 2) if self.kind == "MI300A" else 0.0,
        )  # fmt: skip

    def _start(self, job: CardJob) -> None:
        first = _first_cpu(job)
        self.node.job(job.number, f"{first}-{first + 3}")
        variable = f"CUDA_VISIBLE_DEVICES=MIG-{job.part}"
        if not self.kind.startswith("MIG"):
            variable = f"SLURM_JOB_GPUS={job.part}" if job.watts else "A=1"
        path = f"{self.node.job_path(job.number)}/cgroup.procs"
        self.node.write(path, f"{1000 + job.number}\n")
        self.node.write(f"proc/{1000 + job.number}/environ", f"{variable}\0")

    def _write_sockets(self) -> None:
        """Write RAPL, which measures the same sockets, and the places of the cards."""
        for socket in range(2):
            self.node.zone(str(socket), f"package-{socket}", 1 << 50)
            device = f"sys/bus/pci/devices/0000:0{2 * socket}:00.0"
            self.node.write(f"{device}/device", "0x74a0\n")
            self.node.write(f"{device}/numa_node", f"{socket}\n")
            cpus = f"{8 * socket}-{8 * socket + 7}\n"
            self.node.write(f"sys/devices/system/node/node{socket}/cpulist", cpus)

    def _work(self) -> None:
        """Let a tick pass."""
        used = dict.fromkeys(self.parts, 0.0)
        spent = dict.fromkeys(self.joules, IDLE * SECONDS)
        times: dict[int, float] = {}
        for job in self.jobs:
            use = min(1.0, job.load * self._chance.uniform(0.5, 1.5))
            if job.watts:
                used[job.part] = round(use, 2)
            active = job.watts * used[job.part] * SECONDS
            if self.kind == "MI300A":
                ticks = round(100 * SECONDS * (0.05 if job.watts else use))
                first = _first_cpu(job)
                self.node.work(job.number, dict.fromkeys(range(first, first + 4), ticks))
                times[job.number] = 4 * ticks / 100
                active += job.core_watts * times[job.number]
            spent[job.meter] += active
            share = (0.25 if not job.watts else 0.75) if self.kind == "MI300A" else job.share
            self.truth[job.number] += active + IDLE * SECONDS * share
        for meter, joules in spent.items():
            self.joules[meter] += joules
            if self.kind == "MI300A":
                self.node.spend(str(meter // 2), joules)
        uses = {job.number: used[job.part] for job in self.jobs}
        self.ticks.append(CardTick(spent, uses, times))
        self._show(used)
        self.node.still.sleep(SECONDS)

    def _show(self, used: dict[int, float]) -> None:
        is_mig = self.kind.startswith("MIG")
        parts = [part for part in self.parts if self.kind != "MI300A" or part % 2 == 0]
        details = {
            meter: [Detail("energy", round(joules * 1000))] for meter, joules in self.joules.items()
        }
        if self.kind == "MIG with GPM":
            details |= {part: [Detail("sm_active", round(1e5 * use))] for part, use in used.items()}
        indices = [0, *parts] if is_mig else parts
        self.cards.now = GpuReading(
            cards=[
                SampleGpu(
                    index=index, uuid=f"MIG-{index}" if is_mig and index else f"GPU-{index}",
                    ce_util=0 if is_mig else round(100 * used[index]),
                )
                for index in indices
            ],
            addresses={index: f"0000000{0 if is_mig else index}:00:00.0" if is_mig else
                       f"00000000:0{index}:00.0" for index in indices},
            partitioned=frozenset({0} if is_mig else ()),
            instances=frozenset(parts if is_mig else ()),
            without_utilization=frozenset(indices if is_mig else ()),
            multiprocessors=MULTIPROCESSORS if is_mig else {},
            modules={} if is_mig else {part: f"board {self._meter(part)}" for part in parts},
            details=details,
        )  # fmt: skip


def _first_cpu(job: CardJob) -> int:
    return 8 * (job.part // 2) + 4 * (job.part % 2)


def ceems_cards(machine: CardMachine) -> dict[int, float]:
    """CEEMS' rules: a card's energy to its owner; MIG by SM activity, else by multiprocessors.

    Packages by CPU time: an MI300A counts twice. The second die of a module has no energy. Source:
    docs/advanced/power-consumption.md and cpu-rapl.rules of CEEMS. Occupancy is 1 here.
    """
    found = {job.number: 0.0 for job in machine.jobs}
    for tick in machine.ticks:
        for job in machine.jobs:
            share = float(job.part == job.meter)
            if machine.kind.startswith("MIG"):
                has_gpm = machine.kind == "MIG with GPM"
                weights = {
                    one.number: one.share * (tick.uses[one.number] if has_gpm else 1)
                    for one in machine.jobs
                }
                share = weights[job.number] / (sum(weights.values()) or 1)
            elif machine.kind == "MI300A":
                here = [one.number for one in machine.jobs if one.meter == job.meter]
                share += tick.times[job.number] / sum(tick.times[number] for number in here)
            found[job.number] += share * tick.joules[job.meter]
    return found
