"""The running trial: a store with pages, the daemon with its exporter, and jobs.

Where there is no Slurm, the pages show simulated jobs on simulated nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from ccagent.config.duration import Duration
from ccagent.log import logger
from ccagent.machine.interpreter import python
from ccagent.machine.node import Node
from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.line_keys import WILDCARD
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.settings import StoredMetricSettings, StoreSettings, check_settings
from ccagent.views.web.addresses import node_link
from ccagent.views.web.serving import StoreWithPages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from ccagent.stores.metrics.store import MetricStore

    Values = NDArray[np.float64]

HERE = "here"
"""The name of the cluster that contains this node."""

SIMULATED = "demo"
"""The name of the cluster with simulated nodes and jobs."""

_EVERY = 60
"""Seconds between two simulated values."""

LIVE = "5s"
_LIBC = ctypes.CDLL(None)
_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of <linux/prctl.h>."""

_FIRST_WITHIN = 10.0
_END_WITHIN = 10.0
_SLURM_ANSWERS_WITHIN = 5.0
_LAST = 4096
"""Kept bytes of the daemon's messages: it may run for weeks."""

FIRST_JOB = 4711001
_HISTORY = 6 * 3600
_CORES = 64
_MEMORY = 256
_CARDS = ("00000000:17:00.0", "00000000:65:00.0")
_GB = 1024**3 / 1e9
"""A GB of memory (1024^3) in the unit of the agent's messages, 10^9 bytes."""

_CONFIGURATION = """\
cluster = "{cluster}"
lock-directory = "{directory}"
status-socket = "{directory}/status.sock"
[agents.metrics]
every = "{every}"
on-startup = true
{jobs}[exporter]
listen = ["127.0.0.1:{exporter}"]
[sinks.store]
url = "http://127.0.0.1:{store}/api/write/?cluster={cluster}"
format = "line"
"""
_JOBS_AGENT = '[agents.jobs]\nevery = "10s"\non-startup = true\n'


class SimulatedJob(NamedTuple):
    """A job on one node.

    began, hours: hours before now, and run time; None: still running. memory: requested GB
    (1024^3). cpu: share of the cores in use. rss: share of the memory in use at the end. gpu:
    percent by card.
    """

    name: str
    user: str
    node: str
    cores: int
    memory: int
    began: float
    hours: float | None
    limit: float
    cpu: float
    rss: float
    gpu: tuple[float, ...] = ()
    state: str = "completed"


NODES = ("c001", "c002", "c003", "g001")
JOBS = (
    SimulatedJob("relax.sh", "alice", "c001", 32, 120, 3.4, 3.2, 4, 0.95, 0.78),
    SimulatedJob("train.py", "bob", "g001", 16, 120, 4.2, None, 24, 0.4, 0.6, (63, 0)),
    SimulatedJob("pipeline", "carol", "c002", 16, 32, 5.5, None, 8, 0.38, 0.7),
    SimulatedJob("fit", "dave", "c002", 16, 32, 5, 4.5, 6, 0.0618, 0.81),
    SimulatedJob(
        "assemble", "carol", "c003", 16, 32, 1.5, 0.7, 8, 0.71, 0.994, state="out_of_memory"
    ),
    SimulatedJob("convert", "frank", "c003", 8, 180, 5, 3, 4, 0.93, 0.04),
    SimulatedJob("md-17", "erin", "c001", 32, 96, 2.6, None, 4, 0.96, 0.75),
    SimulatedJob("climate", "frank", "c002", 32, 120, 2, None, 3, 0.94, 0.74),
    SimulatedJob("solver", "grace", "c003", 32, 96, 5.9, None, 6.5, 0.97, 0.72),
)


class SimulatedJobs:
    """The simulated nodes and their jobs of the hours before `now`."""

    def __init__(self, now: int) -> None:
        self.now = now // _EVERY * _EVERY
        self._numbers = {job: number for number, job in enumerate(JOBS, FIRST_JOB)}

    def fill(self, store: MetricStore) -> None:
        """Write the history of all nodes into a store."""
        times = np.arange(self.now - _HISTORY, self.now, _EVERY)
        for node in NODES:
            for path, metric, values in self._series(node, times):
                group = store.add([((SIMULATED, node, *path), metric)], int(times[0]), _EVERY)
                present = np.flatnonzero(~np.isnan(values))
                slots = (times[present] - group.start) // _EVERY
                group.write_column(store.pool, 0, slots, values[present])

    def go_on(self, store: MetricStore, time: int) -> Iterator[None]:
        """Write the values at one time. Yield after each node."""
        for node in NODES:
            for path, metric, values in self._series(node, np.array([time])):
                if not np.isnan(values[0]):
                    store.write((SIMULATED, node, *path), metric, time, float(values[0]))
            yield

    def stored_jobs(self) -> Iterator[StoredJob]:
        """Yield the jobs for the store's table."""
        for job, number in self._numbers.items():
            start, stop = self._times(job)
            cards = {job.node: [*_CARDS[: len(job.gpu)]]} if job.gpu else {}
            details = StoredJobDetails(
                name=job.name, account="demo", partition="gpu" if job.gpu else "normal",
                time_limit=int(job.limit * 3600), cores=job.cores, memory=job.memory << 30,
                gpus=len(job.gpu), cpus={job.node: job.cores}, cards=cards,
                exit_code=None if stop is None else 125 * (job.state != "completed"),
            )  # fmt: skip
            state = "running" if stop is None else job.state
            yield StoredJob(
                SIMULATED, str(number), job.user, state, start, stop, (job.node,), details=details
            )

    def _times(self, job: SimulatedJob) -> tuple[int, int | None]:
        start = self.now - int(job.began * 3600)
        return start, None if job.hours is None else start + int(job.hours * 3600)

    def _series(
        self, node: str, times: NDArray[np.int64]
    ) -> Iterator[tuple[tuple[str, ...], str, Values]]:
        """Yield path below the node, metric and values of all series of a node."""
        used, memory = np.zeros(times.size), np.full(times.size, 7.5)
        cards = np.zeros((len(_CARDS), times.size))
        for job, number in self._numbers.items():
            if job.node != node:
                continue
            values = self._job_values(job, times)
            used += np.nan_to_num(values["job_cpu_util"])
            memory += np.nan_to_num(values["job_mem_rss"])
            for card, share in enumerate(job.gpu):
                cards[card] = np.where(np.isnan(values["job_cpu_util"]), 0, share)
            for metric, each in values.items():
                yield (f"job{number}",), metric, each
        noise = _noise(times, NODES.index(node))
        busy = used / _CORES
        for metric, each in {
            "cpu_user": 0.97 * busy + 0.2 * noise,
            "cpu_system": 0.03 * busy + 0.3 * noise,
            "cpu_idle": np.clip(99.5 - busy, 0, 100),
            "cpu_load": used / 100 + 0.3 * noise,
            "mem_used": memory,
            "mem_available": _MEMORY * _GB - memory,
            "net_bytes_in": (2 + busy) * noise,
            "net_bytes_out": (1 + busy) * noise,
        }.items():
            yield (), metric, np.asarray(each)
        for core in range(_CORES):
            own = np.where(core < used / 100, 98.0, 0.6) * _noise(times, core)
            yield (f"hwthread{core}",), "cpu_user", np.clip(own, 0, 100)
        for card, address in enumerate(_CARDS if node.startswith("g") else ()):
            load = cards[card] * _noise(times, card)
            yield (f"accelerator{address}",), "acc_utilization", load
            yield (f"accelerator{address}",), "acc_mem_used", 0.6 + 0.4 * load
            yield (f"accelerator{address}",), "acc_power", 62 + 3.3 * load

    def _job_values(self, job: SimulatedJob, times: NDArray[np.int64]) -> dict[str, Values]:
        """Return the metrics of a job; NaN before and after it."""
        start, stop = self._times(job)
        length = (stop or self.now) - start
        progress = np.clip((times - start) / max(1, length), 0, 1)
        noise = _noise(times, self._numbers[job])
        limit = job.memory * _GB
        held = job.rss * limit * (0.15 + 0.85 * progress)
        kills = np.where(progress >= 0.985, 1.0 * (job.state == "out_of_memory"), 0.0)
        found = {
            "job_cpu_util": np.clip(100 * job.cpu * noise, 0, 100) * job.cores,
            "job_mem_rss": held,
            "job_mem_used": np.minimum(held + 0.05 * limit, limit),
            "job_mem_peak": np.minimum(held + 0.05 * limit, limit),
            "job_mem_limit": np.full(times.size, limit),
            "job_oom_kills": kills,
            "job_io_read": 40 * noise,
            "job_io_write": 8 * noise,
        }
        is_there = (times >= start) & (times < (stop or np.inf))
        return {name: np.where(is_there, values, np.nan) for name, values in found.items()}


def _noise(times: NDArray[np.int64], key: int) -> Values:
    """Return numbers around 1, the same for the same times and key."""
    return np.asarray(1 + 0.02 * np.sin(times / 97 + key) + 0.02 * np.sin(times / 31 + 3 * key))


class Simulation(Protocol):
    """Simulated nodes and jobs of the cluster SIMULATED until the time `now`."""

    now: int

    @abstractmethod
    def fill(self, store: MetricStore) -> None:
        """Write the history into a store."""

    @abstractmethod
    def go_on(self, store: MetricStore, time: int) -> Iterator[None]:
        """Write the values at one time. Yield between nodes."""

    @abstractmethod
    def stored_jobs(self) -> Iterator[StoredJob]:
        """Yield the jobs."""


class TrialServer(StoreWithPages):
    """A store with pages, the daemon of this node, and the jobs of Slurm or simulated ones."""

    def __init__(
        self,
        settings: StoreSettings,
        simulation: Simulation | None,
        announce: Callable[[TrialServer], None],
    ) -> None:
        """Fill the store. Raise ConfigurationError for invalid settings, OSError for a used port.

        simulation: None: the agent `jobs` sends the jobs of Slurm. announce: called when the pages
        can be opened.
        """
        super().__init__(settings, simulated=frozenset({SIMULATED} if simulation else ()))
        self._announce = announce
        self._directory = settings.data
        self._simulation = simulation
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.exporter_port = int(free.getsockname()[1])
        if simulation is None:
            return
        simulation.fill(self.store)
        for job in simulation.stored_jobs():
            self._jobs.start(job)
            if job.stop is not None:
                self.events.ended.append(job)

    @property
    def is_simulated(self) -> bool:
        """Return whether the jobs are simulated."""
        return self._simulation is not None

    @property
    def node_page(self) -> str:
        """Return the address of this node's page."""
        return f"{self.pages.url}{node_link(HERE, Node().hostname)[1:]}?range=1h"

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that run in addition to the store."""
        return [*super().work(), self._go_on(), self._run_daemon()]

    async def _go_on(self) -> None:
        """Write the next values of the simulated nodes every minute."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.stop)
        # Viewers share the answer that a page does not exist yet for some time.
        last = time.monotonic() + _FIRST_WITHIN
        own = (HERE, Node().hostname)
        while not self.store.root.find(own) and time.monotonic() < last:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        self._announce(self)
        simulation = self._simulation
        if simulation is None:
            return
        done = simulation.now - _EVERY
        while True:
            now = int(self.store.now()) // _EVERY * _EVERY
            while done < now:
                done += _EVERY
                for _ in simulation.go_on(self.store, done):
                    await asyncio.sleep(0)
            await asyncio.sleep(_EVERY - self.store.now() % _EVERY + 0.5)

    def _configure(self) -> str:
        """Write the daemon's configuration, and return its path."""
        path = os.path.join(self._directory, "ccagent.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                _CONFIGURATION.format(
                    cluster=HERE, directory=self._directory, every=LIVE, store=self.port,
                    exporter=self.exporter_port, jobs="" if self._simulation else _JOBS_AGENT,
                )
            )  # fmt: skip
        return path

    async def _run_daemon(self) -> None:
        """Run the daemon until the trial ends. A daemon that fails is logged."""
        path = self._configure()
        process = await asyncio.create_subprocess_exec(
            *python("from ccagent.__main__ import main; main()"), "run", "--config", path,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the trial, which ends the daemon
            # The daemon ends with the trial, also after SIGKILL.
            preexec_fn=lambda: _LIBC.prctl(_PDEATHSIG, signal.SIGTERM),
        )  # fmt: skip
        try:
            errors = b""
            while process.stderr and (part := await process.stderr.read(_LAST)):
                errors = (errors + part)[-_LAST:]
            last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            status = await process.wait()
            logger.warning("this node is not shown: %s", last or f"status {status}")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), _END_WITHIN)
                except TimeoutError:
                    process.kill()


def has_slurm() -> bool:
    """Return whether a controller of Slurm answers on this machine."""
    try:
        done = subprocess.run(
            ["scontrol", "ping"], stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_SLURM_ANSWERS_WITHIN,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and b" UP" in done.stdout


def _end_by_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def run_trial(
    web: str,
    make_simulation: Callable[[int], Simulation] | None,
    announce: Callable[[TrialServer], None],
) -> None:
    """Run the trial until it is interrupted, then delete its data. web: address of the pages.

    make_simulation: makes the simulation from the current time; None: jobs of Slurm. Raise
    ConfigurationError for invalid settings, OSError for a used port.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_by_signal)
    directory = tempfile.mkdtemp(prefix="ccagent-try-")
    every = StoredMetricSettings(frequency=Duration("10s"), aggregation="avg")
    settings = StoreSettings(
        data=directory, listen="127.0.0.1:0", retention=Duration("49h"),
        metrics={WILDCARD: every}, web=WebSettings(listen=web),
    )  # fmt: skip

    settings = check_settings(settings, "try")

    async def main() -> None:
        simulation = make_simulation(int(time.time())) if make_simulation else None
        await TrialServer(settings, simulation, announce).run()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
