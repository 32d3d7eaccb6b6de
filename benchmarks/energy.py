"""Accuracy of the split of energy, and the cost of a tick of the agent `energy`.

    python benchmarks/energy.py [truth] [cost]

* truth: energy of jobs on model machines with a known split, by ccagent, by CEEMS' rule and by
  Kepler's formula on the same traces. Figures are percentages of the truth: active energy of the
  job and idle power of its cpus. Kepler does not split idle energy; its last column compares with
  the active energy alone. Random machines show how often the truth is within ccagent's interval;
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
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from ccagent.agents.energy.meter import EnergyMeter
from ccagent.agents.energy.sources.meters import HwmonEnergySource
from tests.support.energy_model import ModelJob, ModelMachine, ceems, kepler, run_model
from tests.support.energy_tree import EnergyNode, make_settings

TICKS = 100
MACHINES = 200
ROUNDS = 15
CPUS = 16


class Case(NamedTuple):
    """A machine, and the measured job."""

    title: str
    machine: ModelMachine
    job: int = 1


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
        Case("alone on both sockets", ModelMachine([full], system_busy=0.005)),
        Case("one busy core, else empty", ModelMachine([one], system_busy=0.002)),
        Case("one of two alike", ModelMachine(twins, system_busy=0.005)),
        Case("twice the watts of the other", ModelMachine(hot, system_busy=0.005)),
        Case("half of its watts", ModelMachine(hot, system_busy=0.005), job=2),
        Case("waits, beside a busy one", ModelMachine(waiting, system_busy=0.005)),
        Case("a socket each, other watts", ModelMachine(socket, system_busy=0.005)),
    ]


def truth() -> None:
    """Print the table: energy of a job as a percentage of the truth."""
    head = f"{'job':<30}{'truth J':>10}{'ccagent':>9}{'interval':>14}"
    print(f"{head}{'CEEMS':>8}{'Kepler':>8}{'(active)':>10}")
    for case in cases():
        run = run_model(case.machine, TICKS)
        account = run.ledger.jobs[case.job]
        true = case.machine.true_energy(case.job)
        least, most = account.interval(0.0, 0.0)
        inside = "" if least - 0.001 <= true <= most + 0.001 else " !"
        print(
            f"{case.title:<30}{true:>10.0f}"
            f"{(account.active + account.idle) / 1e4 / true:>8.0f}%"
            f"{f'{100 * least / true:.0f}..{100 * most / true:.0f} %{inside}':>14}"
            f"{100 * ceems(case.machine)[case.job] / true:>7.0f}%"
            f"{100 * kepler(case.machine)[case.job] / true:>7.0f}%"
            f"{100 * kepler(case.machine)[case.job] / case.machine.truth[case.job]:>9.0f}%"
        )
    print()
    random_machines()


def random_machines() -> None:
    """Print errors for machines with random jobs, with watts within and beyond the assumption."""
    head = f"{'random machines':<30}{'jobs':>10}{'inside':>9}{'ccagent':>14}"
    print(f"{head}{'CEEMS':>8}{'Kepler':>8}{'(active)':>10}")
    for ratio in (1.0, 2.0, 4.0):
        inside = 0
        errors: dict[str, list[float]] = {"ccagent": [], "CEEMS": [], "Kepler": [], "active": []}
        for seed in range(MACHINES):
            machine = make_machine(seed, ratio)
            run = run_model(machine, 20)
            others = {"CEEMS": ceems(machine), "Kepler": kepler(machine)}
            for number, account in run.ledger.jobs.items():
                true = machine.true_energy(number)
                least, most = account.interval(0.0, 0.0)
                inside += least - 0.001 <= true <= most + 0.001
                own = (account.active + account.idle) / 1e6
                errors["ccagent"].append(abs(own / true - 1))
                active = machine.truth[number]
                errors["active"].append(abs(others["Kepler"][number] / active - 1))
                for name, found in others.items():
                    errors[name].append(abs(found[number] / true - 1))
        jobs = len(errors["ccagent"])
        print(
            f"{f'watts differ up to {ratio:g}-fold':<30}{jobs:>10}{100 * inside / jobs:>8.1f}%"
            f"{100 * median(errors['ccagent']):>13.1f}%{100 * median(errors['CEEMS']):>7.1f}%"
            f"{100 * median(errors['Kepler']):>7.1f}%"
            f"{100 * median(errors['active']):>9.1f}%"
        )
    print("inside: the truth lies in the interval for a ratio of 2. Errors: medians over the jobs.")


def make_machine(seed: int, ratio: float) -> ModelMachine:
    """Return a machine with random jobs on random cpus. Watts per cpu are 3 to `ratio` times 3."""
    chance = random.Random(seed)  # noqa: S311 - a model, no secret
    cpus = [*range(2 * CPUS)]
    chance.shuffle(cpus)
    jobs: list[ModelJob] = []
    for number in range(1, chance.randint(2, 8)):
        count = chance.randint(1, min(12, len(cpus)))
        own, cpus = cpus[:count], cpus[count:]
        watts = 3.0 * chance.uniform(1.0, ratio)
        busy = chance.choice((0.1, 0.5, 0.9, 1.0))
        jobs.append(ModelJob(number=number, cpus=tuple(own), watts=watts, busy=busy))
        if not cpus:
            break
    return ModelMachine(jobs, system_busy=0.005, system_watts=3.0 * ratio**0.5, seed=seed)


def cost() -> None:
    """Print the CPU of a tick, and of only reading and parsing /proc/stat."""
    memory = "/dev/shm"  # noqa: S108 - a directory of its own below it
    place = memory if Path(memory).is_dir() else None
    print(f"{'jobs':>6}{'ms CPU a tick':>15}{'times /proc/stat':>18}")
    for jobs in (0, 10, 100, 1000):
        with tempfile.TemporaryDirectory(dir=place) as directory:
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
    wanted = sys.argv[1:] or ["truth", "cost"]
    if "truth" in wanted:
        truth()
    if "cost" in wanted:
        cost()
        poll()


if __name__ == "__main__":
    main()
