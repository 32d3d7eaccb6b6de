"""Cost of the agent `lustre` on large dumps of job_stats, from reading to records and to a file.

    python benchmarks/jobstats.py [--entries 50000] [--targets 3] [--runs 3] [--before DIRECTORY]

Writes dumps of OSTs to a temporary directory (TMPDIR; 2 KB an entry, and the same size for sent
data). One layout is that of 2.17 with quoted ids and times with nanoseconds; the other, for
comparison, that of 2.14 with plain ids. Measures, each time in a new process:

* reading a dump and splitting it into lines, which every parser in Python must do: the base of the
  ratios;
* the parser alone, and the agent up to its records, with a quarter of the counters not zero and
  with none of them zero;
* `ccagent lustre --once` to a file, the whole process;
* the agent and the whole process with several such targets in one dump;
* the ratio of the CPU of quoted ids to that of plain ids. 2.15.2 also escapes the colons in ids;
  both have two more lines an entry than 2.14.

`--before` is another checkout. Parser and agent of both are measured in turns. The other checkout's
CPU time and the ratio of this one to it are printed, too.

CPU is user and system time, the median of the runs; for the whole process it includes the start of
Python. Entries a second are per second of CPU. Memory is the maximum resident set. Machines differ
and are noisy: compare the rows of one run with each other.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMAND = ["ccagent"] if shutil.which("ccagent") else [sys.executable, "-m", "ccagent"]
CHUNK = 1 << 20


class Cost(NamedTuple):
    """CPU seconds, maximum resident set in MB, and the number of items or sent bytes."""

    cpu: float
    memory: float
    found: int


def write(path: str, entries: int, targets: int, nonzero: float, layout: str) -> None:
    """Write a dump with this number of entries for each target."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.support.lustre_server import large_text

    with open(path, "wb") as file:
        for number in range(targets):
            target = f"scratch-OST{number:04x}"
            file.writelines(
                large_text(entries, nonzero=nonzero, seed=number, layout=layout, target=target)
            )


def split(path: str) -> int:
    """Read a dump in lines. Return their number."""
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def parse_only(path: str) -> int:
    """Parse a dump. Return the number of entries. Exit at an invalid line."""
    jobstats = "ccagent.agents.lustre.jobstats"
    parse = _find("parse", f"{jobstats}.parser", jobstats)
    entries = 0
    for found in parse(_chunks(path)):
        if type(found).__name__ == "Problem":
            raise SystemExit(f"{path}: {found}")
        entries += type(found).__name__ in {"JobstatsEntry", "Entry"}
    return entries


def parse_to_records(path: str) -> int:
    """Read a dump with the agent. Return the number of records."""
    from ccagent.agents.lustre.agent import LustreAgent, LustreSettings

    node = _find("Node", "ccagent.machine.node", "ccagent.node")(cluster="benchmark")
    agent = LustreAgent(LustreSettings(input=path), frozenset({"sonar"}))
    agent.is_only_sample = True
    gc.disable()  # as one-shot commands do
    return sum(1 for _ in agent.sample(node))


def _find(name: str, *modules: str) -> Any:
    """Return a name from the first module that has it, because earlier checkouts differ."""
    for module in modules:
        with suppress(ImportError, AttributeError):
            return getattr(import_module(module), name)
    raise SystemExit(f"no {name} in {', '.join(modules)}")


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


WORKERS: dict[str, Callable[[str], int]] = {
    "split": split,
    "parse": parse_only,
    "records": parse_to_records,
}


def worker(name: str, path: str) -> None:
    """Run one worker in this process. Print its cost without imports as JSON."""
    function = WORKERS[name]
    with tempfile.NamedTemporaryFile() as empty:
        empty.write(b"obdfilter.scratch-OST0000.job_stats=job_stats:\n")
        empty.flush()
        function(empty.name)
    before = _cpu(resource.RUSAGE_SELF)
    found = function(path)
    cpu = _cpu(resource.RUSAGE_SELF) - before
    # VmHWM: unlike ru_maxrss it excludes the parent's memory before the fork.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    memory = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    json.dump(Cost(cpu, memory, found), sys.stdout)


def _cpu(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def in_worker(name: str, path: str, runs: int, before: str) -> tuple[Cost, Cost | None]:
    """Measure a function of WORKERS, alternating with another checkout if given."""
    costs: list[Cost] = []
    others: list[Cost] = []
    for _ in range(runs):
        costs.append(_in_worker(name, path, ""))
        if before:
            others.append(_in_worker(name, path, before))
    return _median(iter(costs)), _median(iter(others)) if others else None


def _in_worker(name: str, path: str, checkout: str) -> Cost:
    command = [sys.executable, __file__, "--worker", name, path]
    environment = dict(os.environ)
    if checkout:
        environment["PYTHONPATH"] = os.path.join(os.path.abspath(checkout), "src")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return Cost(*json.loads(done.stdout))


def whole_process(path: str, runs: int) -> Cost:
    """Measure `ccagent lustre --once` with a directory as sink."""
    return _median(_whole_process(path) for _ in range(runs))


def _whole_process(path: str) -> Cost:
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as directory:
        command = [*COMMAND, "lustre", "--once", "--input", path, "--sink", f"dir:{directory}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        sent = sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, sent)


def _median(costs: Iterator[Cost]) -> Cost:
    """Return the median of the CPU times and the maximum memory."""
    each = list(costs)
    cpu = statistics.median(cost.cpu for cost in each)
    return Cost(cpu, max(cost.memory for cost in each), each[-1].found)


PLAIN = "2.14"
QUOTED = ("2.17", "2.15.2")
DUMPS = (
    ("2.17", 0.25, False), ("2.17", 1.0, False), ("2.14", 0.25, False), ("2.14", 1.0, False),
    ("2.17", 0.25, True),
)  # fmt: skip
"""Layout, share of nonzero counters, and whether there are several targets."""


def measure(entries: int, targets: int, runs: int, directory: str, before: str) -> None:
    """Print a line for each result immediately."""
    print(f"{'':42}{'entries/s':>10}{'CPU s':>8}{'ratio':>7}{'MB':>6}", end="")
    print(f"{'before':>8}{'ratio':>7}" if before else "")
    for layout, nonzero, is_several in DUMPS:
        several = targets if is_several else 1
        path = os.path.join(directory, "dump")
        write_options = [str(entries), str(several), str(nonzero), layout]
        subprocess.run([sys.executable, __file__, "--write", path, *write_options], check=True)
        number = entries * several
        size = os.path.getsize(path) / 1e6
        print(f"{layout}, {several} x {entries} entries, {size:.0f} MB, {nonzero:.0%} not zero")
        alone, _ = in_worker("split", path, runs, "")
        _show("  reading and splitting into lines", number, alone, alone, None)
        if several == 1:
            parsed, other = in_worker("parse", path, runs, before)
            if parsed.found != number:
                raise SystemExit(f"the parser found {parsed.found} entries of {number}")
            _show("  parser", number, parsed, alone, other)
        records, other = in_worker("records", path, runs, before)
        _show(f"  agent, to {records.found} records", number, records, alone, other)
        if nonzero < 1:
            whole = whole_process(path, runs)
            what = f"  ccagent, to {whole.found / 1e6:.0f} MB in a file"
            _show(what, number, whole, alone, None)


def compare_ids(entries: int, runs: int, directory: str) -> None:
    """Print the CPU of quoted ids as a multiple of plain ids, measured in turns."""
    print("quoted ids to plain ones of 2.14, least of the runs: parser, agent")
    for nonzero in (0.0, 0.25, 1.0):
        paths = {layout: os.path.join(directory, layout) for layout in (PLAIN, *QUOTED)}
        for layout, path in paths.items():
            write_options = [str(entries), "1", str(nonzero), layout]
            subprocess.run([sys.executable, __file__, "--write", path, *write_options], check=True)
        spent: dict[tuple[str, str], float] = {}
        for _ in range(runs):
            for layout, path in paths.items():
                for name in ("parse", "records"):
                    cpu = _in_worker(name, path, "").cpu
                    spent[layout, name] = min(cpu, spent.get((layout, name), cpu))
        for layout in QUOTED:
            parser, agent = (spent[layout, n] / spent[PLAIN, n] for n in ("parse", "records"))
            print(f"  {layout}, {nonzero:.0%} not zero{parser:12.2f}{agent:8.2f}", flush=True)


def _show(what: str, entries: int, cost: Cost, alone: Cost, before: Cost | None) -> None:
    ratio = cost.cpu / alone.cpu
    rate = entries / cost.cpu
    line = f"{what:42}{rate:10.0f}{cost.cpu:8.2f}{ratio:7.1f}{cost.memory:6.0f}"
    if before is not None:
        line += f"{before.cpu:8.2f}{cost.cpu / before.cpu:7.2f}"
    print(line, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=50_000)
    parser.add_argument("--targets", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only-ids", action="store_true", help="compare only quoted and plain ids")
    parser.add_argument("--before", default="", metavar="DIRECTORY")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(*options.worker)
    elif options.write:
        path, entries, targets, nonzero, layout = options.write
        write(path, int(entries), int(targets), float(nonzero), layout)
    else:
        with tempfile.TemporaryDirectory() as directory:
            if not options.only_ids:
                measure(options.entries, options.targets, options.runs, directory, options.before)
            compare_ids(options.entries, options.runs, directory)


if __name__ == "__main__":
    main()
