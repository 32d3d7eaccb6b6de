"""Cost of the agent `fast`, and accuracy of its bandwidth probe.

    python benchmarks/fast.py [rounds] [bandwidth] [hog] [memory]

* rounds: CPU of a round of all KPIs, including encoding, with 0, 1, 10 and 50 machines (each a
  process), and the messages' share of the CPU; CPU of decoding an init_agent;
* bandwidth: the probe (NumPy) against a loop in C with the same access pattern, in turns, on one
  core and on two;
* hog: remaining bandwidth of a core while the other cores read memory;
* memory: resident memory of a daemon without and with [agents.fast].
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.sample import sleeping_processes
from ccagent.agents.fast.applications import MonitoredApplication
from ccagent.agents.fast.bandwidth import WINDOW, Measured, buffer_size, measure
from ccagent.agents.fast.kpis import KpiReader
from ccagent.agents.fast.messages.decoding import decode
from ccagent.agents.fast.runtime import reports
from ccagent.agents.fast.settings import FastSettings
from ccagent.machine.node import Node
from ccagent.machine.virtual_machines import read_start

ROUNDS = 50
ATTEMPTS = 9
UNDISTURBED = 0.9
_INIT = (
    b"---\ntask: init agent\nKPI:\n  categories:\n    - Node Cpu usage : 1\n"
    b"    - Node memory usage : 1\n  repeat: 10\n---\n"
)
_LOOP = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static size_t words;
static double window;
static pthread_barrier_t barrier;
static int cores[1024];
static double rates[1024];
static double shares[1024];

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *work(void *argument) {
    long number = (long)argument;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cores[number], &set);
    sched_setaffinity(0, sizeof set, &set);
    /* NumPy asks for huge pages for large arrays as well. */
    int64_t *buffer = aligned_alloc(1 << 21, words * sizeof *buffer);
    madvise(buffer, words * sizeof *buffer, MADV_HUGEPAGE);
    memset(buffer, 1, words * sizeof *buffer);
    volatile int64_t kept = 0;
    pthread_barrier_wait(&barrier);
    double begin = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
    size_t passes = 0;
    while (now(CLOCK_MONOTONIC) < begin + window) {
        int64_t sum = 0;
        for (size_t i = 0; i < words; i += 8) sum |= buffer[i];
        kept = sum;
        passes++;
    }
    (void)kept;
    double elapsed = now(CLOCK_MONOTONIC) - begin;
    rates[number] = passes * (words / 8) * 64.0 / elapsed;
    shares[number] = (now(CLOCK_THREAD_CPUTIME_ID) - cpu) / elapsed;
    free(buffer);
    return NULL;
}

int main(int count, char **words_of_command) {
    words = strtoull(words_of_command[1], NULL, 10) / 8;
    window = strtod(words_of_command[2], NULL);
    int threads = count - 3;
    pthread_t ids[1024];
    pthread_barrier_init(&barrier, NULL, threads);
    for (long i = 0; i < threads; i++) {
        cores[i] = atoi(words_of_command[3 + i]);
        pthread_create(&ids[i], NULL, work, (void *)i);
    }
    double sum = 0, share = 1;
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        sum += rates[i];
        if (shares[i] < share) share = shares[i];
    }
    printf("%.0f %.3f\n", sum, share);
}
"""


def rounds() -> None:
    """Print the CPU of a round in ms: reading alone, and reading with encoding."""
    node = Node(hostname="c1", cluster="fox")
    for count in (0, 1, 10, 50):
        with sleeping_processes(count):
            children = _sleepers(count)
            applications = [
                MonitoredApplication("", each, f"vm-{each}", read_start(node, each))
                for each in children
            ]
            reader = KpiReader(FastSettings())
            reader.read(node, applications)
            reading: list[float] = []
            whole: list[float] = []
            for _ in range(ROUNDS):
                begin = time.process_time()
                found = reader.read(node, applications)
                middle = time.process_time()
                for _payload in reports("c1", found):
                    pass
                reading.append(middle - begin)
                whole.append(time.process_time() - begin)
            reader.close()
        print(
            f"{count:3} applications: a round {1e3 * median(whole):.2f} ms of CPU,"
            f" of which reading {1e3 * median(reading):.2f} ms; worst {1e3 * max(whole):.2f} ms"
        )
    begin = time.process_time()
    for _ in range(ROUNDS):
        decode("agent task", _INIT)
    print(f"decoding an init_agent: {1e3 * (time.process_time() - begin) / ROUNDS:.2f} ms")


def bandwidth() -> None:
    """Print the bandwidth of the probe and of the loop in C, measured in turns.

    Only attempts that used their cores almost alone count, with the bytes read per second of CPU
    time. The best attempts are printed. On a busy machine use: chrt -f 1.
    """
    node = Node(hostname="c1", cluster="fox")
    with tempfile.TemporaryDirectory() as directory:
        program = _compiled(directory)
        for cores in ([0], [0, 1]):
            size = buffer_size(node, cores)
            ours: list[Measured] = []
            theirs: list[Measured] = []
            for _ in range(ATTEMPTS):
                ours.append(measure(node, cores))
                theirs.append(_loop(program, size, cores))
            mine, other = _undisturbed(ours), _undisturbed(theirs)
            text = f"{len(cores)} cores, {size >> 20} MiB each:"
            if not mine or not other:
                print(f"{text} never had the cores for itself")
                continue
            print(
                f"{text} probe {max(mine) / 1e9:.2f} GB/s (median {median(mine) / 1e9:.2f} of"
                f" {len(mine)}), C {max(other) / 1e9:.2f} GB/s (median {median(other) / 1e9:.2f} of"
                f" {len(other)}): {max(mine) / max(other):.3f}"
            )


def _undisturbed(found: list[Measured]) -> list[float]:
    return [each.bandwidth / each.share for each in found if each.share >= UNDISTURBED]


def hog() -> None:
    """Print the bandwidth of core 0 alone, and while all other cores read memory."""
    node = Node(hostname="c1", cluster="fox")
    others = sorted(os.sched_getaffinity(0) - {0})
    with tempfile.TemporaryDirectory() as directory:
        program = _compiled(directory)
        size = buffer_size(node, [0])
        alone = [measure(node, [0]) for _ in range(ATTEMPTS)]
        words = [program, str(size), "60", *map(str, others)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            time.sleep(1.0)
            beside = [measure(node, [0]) for _ in range(ATTEMPTS)]
            process.kill()
    best = max(each.bandwidth for each in alone)
    for name, found in (("alone", alone), ("beside a hog", beside)):
        shown = ", ".join(f"{each.bandwidth / best:.2f} ({each.share:.2f})" for each in found)
        print(f"core 0 {name}: of {best / 1e9:.2f} GB/s (share of CPU): {shown}")


def memory() -> None:
    """Print the resident memory of a daemon in MB, two seconds after its start."""
    sample = '[agents.sample]\nevery = "1h"\n'
    fast = f'{sample}[agents.fast]\nsinks = ["line"]\n'
    for name, table in (
        ("sample alone", sample),
        ("with fast, no broker", fast),
        ("with fast and a broker that is away", f'{fast}url = "mqtt://127.0.0.1:9"\n'),
    ):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "ccagent.toml"
            sinks = '[sinks.line]\nurl = "dir:DIR/line"\nformat = "line"\n'
            sinks += '[sinks.sonar]\nurl = "dir:DIR/sonar"\n'
            text = f'status-socket = "{directory}/s"\n{table}{sinks}'.replace("DIR", directory)
            file.write_text(text.replace("[agents.sample]", '[agents.sample]\nsinks = ["sonar"]'))
            command = [sys.executable, "-m", "ccagent", "run", "--config", str(file)]
            with subprocess.Popen(command) as process:
                time.sleep(2.0)
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                process.terminate()
        print(f"{name}: {pages * os.sysconf('SC_PAGE_SIZE') / 1e6:.1f} MB resident")


def _sleepers(count: int) -> list[int]:
    """Return the children of this process."""
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(each) for each in own][:count]


def _compiled(directory: str) -> str:
    program = f"{directory}/loop"
    source = Path(directory) / "loop.c"
    source.write_text(_LOOP)
    subprocess.run(["cc", "-O2", "-pthread", "-o", program, str(source)], check=True)
    return program


def _loop(program: str, size: int, cores: list[int]) -> Measured:
    words = [program, str(size), str(WINDOW), *map(str, cores)]
    output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    rate, share = map(float, output.split())
    return Measured(rate, share)


def main() -> None:
    """Run the measurements named on the command line, else all."""
    known = {"rounds": rounds, "bandwidth": bandwidth, "hog": hog, "memory": memory}
    for name in sys.argv[1:] or known:
        known[name]()


if __name__ == "__main__":
    main()
