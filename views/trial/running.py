"""The running trial: a store with pages, the daemon with its exporter, and jobs."""

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
from typing import TYPE_CHECKING, Protocol

from ccagent.config.duration import Duration
from ccagent.log import logger
from ccagent.machine.interpreter import python
from ccagent.machine.node import Node
from ccagent.stores.metrics.line_keys import WILDCARD
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.settings import StoredMetricSettings, StoreSettings, check_settings
from ccagent.views.web.addresses import node_link
from ccagent.views.web.serving import StoreWithPages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from ccagent.stores.metrics.job_table import StoredJob
    from ccagent.stores.metrics.store import MetricStore

HERE = "here"
"""The name of the cluster that contains this node."""

SIMULATED = "demo"
"""The name of the cluster with simulated nodes and jobs."""

EVERY = 60
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
_JOBS = '[agents.jobs]\nevery = "10s"\non-startup = true\n'


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
        done = simulation.now - EVERY
        while True:
            now = int(self.store.now()) // EVERY * EVERY
            while done < now:
                done += EVERY
                for _ in simulation.go_on(self.store, done):
                    await asyncio.sleep(0)
            await asyncio.sleep(EVERY - self.store.now() % EVERY + 0.5)

    def _configure(self) -> str:
        """Write the daemon's configuration, and return its path."""
        path = os.path.join(self._directory, "ccagent.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                _CONFIGURATION.format(
                    cluster=HERE, directory=self._directory, every=LIVE, store=self.port,
                    exporter=self.exporter_port, jobs="" if self._simulation else _JOBS,
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
