"""Accuracy of the split of energy, and the cost of a tick of the agent `energy`.

    python benchmarks/energy.py [truth] [cost] [SEED]

* truth: energy of jobs on model machines with a known split, by ccagent with and without a known
  idle power, by CEEMS' rule and by Kepler's formula on the same traces. Figures are percentages of
  the truth: active energy of the job and idle power of its cpus. Kepler does not split idle energy;
  its last column compares with the active energy alone. A full cluster shows how often the truth
  is within ccagent's interval. The same for GPUs of several parts, with the idle power unknown;
* cost: CPU of a tick with 0, 10, 100 and 1000 jobs on two sockets of 64 cpus, with files in memory;
  CPU of reading power meters.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from ccagent.agents.energy.meter import EnergyMeter
from ccagent.agents.energy.sources.meters import HwmonEnergySource
from tests.support.card_model import KINDS, CardMachine, ceems_cards
from tests.support.energy_model import GIB, ModelJob, ModelMachine, ceems, kepler, run_model
from tests.support.energy_tree import EnergyNode, make_settings

if TYPE_CHECKING:
    from ccagent.agents.energy.accounts import JobAccount

TICKS = 100
JOBS = 500
OFFSET = next((int(word) for word in sys.argv[1:] if word.isdigit()), 0)
"""Added to the seeds of random machines."""

CARD_MACHINES = 25
CARD_TICKS = 60
FULL_MACHINES = 24
"""Nodes on which more than JOBS jobs end in an hour."""
LONG_TICK = 30.0
HOUR = 120
DRAINED = (2 * HOUR, 2 * HOUR + 10)
ROUNDS = 15
CPUS = 16


class Case(NamedTuple):
    """A machine, and the measured job."""

    title: str
    jobs: list[ModelJob]
    system_busy: float = 0.005
    job: int = 1

    def machine(self) -> ModelMachine:
        """Return a new machine."""
        return ModelMachine(self.jobs, system_busy=self.system_busy)


def cases() -> list[Case]:
    """Return the machines of the table. A socket has 16 cpus and takes 60 W while idle."""
    half = (*range(8), *range(16, 24))
    rest = (*range(8, 16), *range(24, 32))
    one = ModelJob(number=1, cpus=(0,), watts=5.0, busy=1.0)
    full = ModelJob(number=1, cpus=tuple(range(32)), watts=5.0, busy=0.95)
    twins = [
        ModelJob(number=1, cpus=half, watts=4.0, busy=0.9),
        ModelJob(number=2, cpus=rest, watts=4.0, busy=0.9),
    ]
    hot = [
        ModelJob(number=1, cpus=half, watts=6.0, busy=0.9),
        ModelJob(number=2, cpus=rest, watts=3.0, busy=0.9),
    ]
    waiting = [
        ModelJob(number=1, cpus=half, watts=5.0, busy=0.05),
        ModelJob(number=2, cpus=rest, watts=5.0, busy=0.95),
    ]
    socket = [
        ModelJob(number=1, cpus=tuple(range(16)), watts=5.0, busy=0.5),
        ModelJob(number=2, cpus=tuple(range(16, 32)), watts=2.5, busy=0.9),
    ]
    return [
        Case("alone on both sockets", [full]),
        Case("one busy core, else empty", [one], 0.002),
        Case("one of two alike", twins),
        Case("twice the watts of the other", hot),
        Case("half of its watts", hot, job=2),
        Case("waits, beside a busy one", waiting),
        Case("a socket each, other watts", socket),
    ]


def truth() -> None:
    """Print the table: energy of a job as a percentage of the truth."""
    head = f"{'job':<28}{'truth J':>8}{'idle known':>11}{'interval':>14}"
    print(f"{head}{'unknown':>9}{'interval':>14}{'CEEMS':>7}{'Kepler':>8}{'(active)':>10}")
    for case in cases():
        columns: list[str] = []
        for knows_idle in (True, False):
            run = run_model(case.machine(), TICKS, knows_idle=knows_idle)
            machine, account = run.machine, run.ledger.jobs[case.job]
            true = machine.true_energy(case.job)
            least, most = account.interval(0.0, 0.0)
            inside = "%" if least - 0.001 <= true <= most + 0.001 else "%!"
            columns.append(f"{(account.active + account.idle) / 1e4 / true:.0f}%")
            columns.append(f"{100 * least / true:.0f}..{100 * most / true:.0f} {inside}")
        print(
            f"{case.title:<28}{true:>8.0f}{columns[0]:>11}{columns[1]:>14}{columns[2]:>9}"
            f"{columns[3]:>14}"
            f"{100 * ceems(machine)[case.job] / true:>6.0f}%"
            f"{100 * kepler(machine)[case.job] / true:>7.0f}%"
            f"{100 * kepler(machine)[case.job] / machine.truth[case.job]:>9.0f}%"
        )
    print()


class Found(NamedTuple):
    """A job's energy by each method, relative to the truth."""

    is_inside: bool
    width: float
    memory_inside: bool
    errors: tuple[float, float, float]


def full_cluster() -> None:
    """Print how often the truth is in the interval while no node is ever without a job.

    The nodes run full for two hours, then are idle for five minutes, then run full for an hour. The
    idle power isn't configured. All errors of sensors are 0.
    """
    print(f"{'full cluster, watts up to':<26}{'jobs that ended':<22}{'jobs':>6}{'inside':>8}"
          f"{'memory':>8}{'width':>8}{'ccagent':>9}{'CEEMS':>8}{'Kepler':>8}")  # fmt: skip
    for ratio in (1.0, 2.0, 4.0):
        phases: dict[str, list[Found]] = {
            "in the first hour": [], "in the second hour": [], "after five idle min": [],
        }  # fmt: skip
        for seed in range(FULL_MACHINES):
            run = run_model(make_full_machine(seed + OFFSET, ratio), DRAINED[1] + HOUR, LONG_TICK)
            others = ceems(run.machine), kepler(run.machine)
            for number, account in run.ended.items():
                job = run.machine.jobs[number - 1]
                names = [*phases]
                name = names[0 if job.last <= HOUR else 1 if job.last <= DRAINED[0] else 2]
                phases[name].append(judge(run.machine, account, others))
        for name, every in phases.items():
            found = every[:JOBS]
            share = 100 / len(found)
            errors = [median(one.errors[n] for one in found) for n in range(3)]
            print(
                f"{f'{ratio:g}-fold':<26}{name:<22}{len(found):>6}"
                f"{share * sum(one.is_inside for one in found):>7.1f}%"
                f"{share * sum(one.memory_inside for one in found):>7.1f}%"
                f"{100 * median(one.width for one in found):>7.0f}%"
                f"{100 * errors[0]:>8.1f}%{100 * errors[1]:>7.1f}%{100 * errors[2]:>7.1f}%"
            )
    print("inside: the truth lies in the interval for a ratio of 2; memory: in that of the memory.")
    print(
        "width: of the interval, relative to the truth. Errors of the rest: medians over the jobs."
    )


def judge(
    machine: ModelMachine, account: JobAccount, others: tuple[dict[int, float], dict[int, float]]
) -> Found:
    """Compare an ended job with the truth. The other rules have only its processors."""
    number = account.job
    memory, processors = machine.true_memory(number), machine.true_energy(number)
    true = memory + processors
    least, most = account.interval(0.0, 0.0)
    low, high = account.memory_interval(0.0, 0.0)
    own = (account.active + account.idle) / 1e6
    first, second = (abs(each[number] / processors - 1) for each in others)
    return Found(
        least - 0.01 <= true <= most + 0.01,
        (most - least) / true,
        low - 0.01 <= memory <= high + 0.01,
        (abs(own / true - 1), first, second),
    )


def make_full_machine(seed: int, ratio: float) -> ModelMachine:
    """Return a machine on which a job starts whenever cpus are free, except while drained.

    Jobs have random cpus, load and length. Watts per busy cpu are 3 to `ratio` times 3, those of
    memory 0.2 to 3.
    """
    chance = random.Random(seed)  # noqa: S311 - a model, no secret
    free, running, jobs = [*range(2 * CPUS)], list[ModelJob](), list[ModelJob]()
    for tick in range(1, DRAINED[1] + HOUR + 1):
        for job in [job for job in running if job.last < tick]:
            running.remove(job)
            free += job.cpus
        is_drained = DRAINED[0] < tick <= DRAINED[1]
        while free and not is_drained:
            count = min(len(free), chance.choice((1, 1, 2, 4, 8, 12, 16)))
            cpus = tuple(free.pop(chance.randrange(len(free))) for _ in range(count))
            last = tick + chance.randint(HOUR // 12, 2 * HOUR // 3) - 1
            job = ModelJob(
                number=len(jobs) + 1, cpus=cpus, watts=3.0 * chance.uniform(1.0, ratio),
                busy=chance.choice((0.1, 0.5, 0.9, 1.0)), first=tick,
                last=min(last, DRAINED[0]) if tick <= DRAINED[0] else last,
                memory=count * 8 * GIB, memory_watts=0.2 * chance.uniform(1.0, 15.0),
            )  # fmt: skip
            jobs.append(job)
            running.append(job)
    return ModelMachine(
        jobs, system_busy=0.005, system_watts=3.0 * ratio**0.5, seed=seed, memory_idle=8.0
    )


def cards() -> None:
    """Print how often the truth is in the interval on cards of several parts.

    All errors of sensors are 0. Kepler's rule needs the utilisation of processes by NVML, which
    these cards do not have.
    """
    print(f"{'cards':<16}{'jobs':>6}{'inside':>8}{'at 0':>6}{'width':>7}{'ccagent':>9}"
          f"{'CEEMS':>8}{'at 0':>6}{'sum':>7}")  # fmt: skip
    for kind in KINDS:
        rows: list[tuple[bool, bool, float, float, float, bool]] = []
        whole = [0.0, 0.0]
        for seed in range(CARD_MACHINES):
            with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
                machine = CardMachine(Path(directory), kind, seed + OFFSET)
                accounts, others = machine.run(CARD_TICKS), ceems_cards(machine)
            for number, true in machine.truth.items():
                account, own = accounts[number], others[number]
                least, most = account.interval(0.0, 0.0)
                found = (account.active + account.idle) / 1e6
                rows.append((least - 0.01 <= true <= most + 0.01, not found, (most - least) / true,
                             abs(found / true - 1), abs(own / true - 1), not own))  # fmt: skip
            whole[0] += sum(others.values())
            whole[1] += sum(sum(tick.joules.values()) for tick in machine.ticks)
        inside, zero, width, error, other, lost = zip(*rows, strict=True)
        print(
            f"{kind:<16}{len(rows):>6}{100 * sum(inside) / len(rows):>7.1f}%{sum(zero):>6}"
            f"{100 * median(width):>6.0f}%{100 * median(error):>8.1f}%{100 * median(other):>7.1f}%"
            f"{sum(lost):>6}{100 * whole[0] / whole[1]:>6.0f}%"
        )
    print("at 0: busy jobs without energy. sum: of the jobs, in percent of the measured energy.")


def memory_directory() -> str | None:
    """Return a directory in memory for temporary files; None without one."""
    memory = "/dev/shm"  # noqa: S108 - a directory of its own below it
    return memory if Path(memory).is_dir() else None


def cost() -> None:
    """Print the CPU of a tick, and of only reading and parsing /proc/stat."""
    print(f"{'jobs':>6}{'ms CPU a tick':>15}{'times /proc/stat':>18}")
    for jobs in (0, 10, 100, 1000):
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            ticks, plain = measure(EnergyNode(Path(directory), cpus=64), jobs)
        print(f"{jobs:>6}{1e3 * ticks:>15.2f}{ticks / plain:>18.0f}")


def poll() -> None:
    """Print the CPU of reading four power meters, which happens every second."""
    with tempfile.TemporaryDirectory() as directory:
        node, source = EnergyNode(Path(directory)), HwmonEnergySource()
        for number, rail in enumerate(("Module", "Grace", "CPU", "SysIO")):
            place = f"sys/class/hwmon/hwmon{number}"
            node.write(f"{place}/name", "power_meter\n")
            node.write(f"{place}/power1_average", "300000000\n")
            node.write(f"{place}/power1_oem_info", f"{rail} Power Socket 0\n")
        source.read(node)
        spent: list[float] = []
        for _ in range(50 * ROUNDS):
            node.still.sleep(1)
            begin = time.process_time()
            source.poll(node)
            spent.append(time.process_time() - begin)
    print(f"a poll of four meters of power: {1e6 * median(spent):.0f} us CPU")


def measure(node: EnergyNode, jobs: int) -> tuple[float, float]:
    """Return CPU seconds of a tick, and of reading /proc/stat, as medians."""
    node.zones()
    for job in range(1, jobs + 1):
        node.job(job, str(job % 128))
    meter = EnergyMeter(make_settings(**{"idle-package": 60.0}))
    meter.open(node)
    ticks: list[float] = []
    plain: list[float] = []
    for _ in range(ROUNDS):
        node.still.sleep(10)
        node.spend("0", 500)
        begin = time.process_time()
        meter.tick(node)
        between = time.process_time()
        node.read("proc/stat").split()
        plain.append(time.process_time() - between)
        ticks.append(between - begin)
    meter.close()
    return median(ticks), median(plain)


def main() -> None:
    """Run the measurements named on the command line, else all."""
    words = sys.argv[1:]
    wanted = [word for word in words if not word.isdigit()] or ["truth", "cost"]
    if "truth" in wanted:
        truth()
        full_cluster()
        cards()
    if "cost" in wanted:
        cost()
        poll()


if __name__ == "__main__":
    main()
