"""The running demo: a store with pages, the continued simulated cluster, this node live."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ccagent.config.duration import Duration
from ccagent.log import logger
from ccagent.machine.node import Node
from ccagent.stores.metrics.catalogue import WILDCARD
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.settings import StoredMetricSettings, StoreSettings, check_settings
from ccagent.views.demo.cluster import CLUSTER, EVERY, SimulatedCluster
from ccagent.views.web.addresses import node_link
from ccagent.views.web.serving import StoreWithPages

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ccagent.views.demo.jobs import DemoJob

HERE = "here"
"""The name of the cluster that contains this node."""

_LIVE = "10s"
_LIBC = ctypes.CDLL(None)
_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of <linux/prctl.h>."""

_END_WITHIN = 5.0
_SHOWN_JOB = 4711002


class DemoServer(StoreWithPages):
    """A store with the history of a simulated cluster, which the demo continues."""

    def __init__(
        self,
        settings: StoreSettings,
        nodes: int,
        announce: Callable[[DemoServer], None],
        jobs: list[DemoJob] | None = None,
    ) -> None:
        """Fill the store. Raise ConfigurationError for invalid settings, OSError for a used port.

        announce: called when the pages can be opened. jobs: None: the jobs of the demo.
        """
        super().__init__(settings, simulated=frozenset({CLUSTER}))
        self._announce = announce
        self._cluster = SimulatedCluster(int(self.store.now()), nodes, jobs)
        self._cluster.fill(self.store)
        for job in self._cluster.stored_jobs():
            self._jobs.start(job)
            if job.stop is not None:
                self.events.ended.append(job)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that run in addition to the store."""
        return [*super().work(), self._go_on(), self._watch_node()]

    async def _go_on(self) -> None:
        """Write the next values of the simulated nodes every minute."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.stop)
        self._announce(self)
        done = self._cluster.now - EVERY
        while True:
            now = int(self.store.now()) // EVERY * EVERY
            while done < now:
                done += EVERY
                for _ in self._cluster.go_on(self.store, done):
                    await asyncio.sleep(0)
            await asyncio.sleep(EVERY - self.store.now() % EVERY + 0.5)

    async def _watch_node(self) -> None:
        """Run the agent that sends the metrics of this node, immediately and then periodically."""
        for cadence in (["--once"], ["--every", _LIVE]):
            status, errors = await self._run_agent(cadence)
            if status:
                last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
                logger.warning("this node is not shown: %s", last or f"exit status {status}")
                return

    async def _run_agent(self, cadence: list[str]) -> tuple[int, bytes]:
        """Run the agent `metrics`. Return its exit status and its standard error."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ccagent", "metrics", "--no-config", *cadence,
            "--cluster", HERE, "--sink", f"http://127.0.0.1:{self.port}/api/write/?cluster={HERE}",
            "--format", "line", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            # The agent ends with the demo, also after SIGKILL.
            preexec_fn=lambda: _LIBC.prctl(_PDEATHSIG, signal.SIGTERM),
        )  # fmt: skip
        try:
            _, errors = await process.communicate()
            return process.returncode or 0, errors
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), _END_WITHIN)
                except TimeoutError:
                    process.kill()

    def describe(self, began: float) -> str:
        """Return the text for the user who has started the demo, with addresses and commands."""
        pages = self.pages.url
        own_page = f"{node_link(HERE, Node().hostname)[1:]}?range=1h"
        return (
            f"ccagent demo: {pages}\n"
            f"  cluster demo   {pages}cluster/{CLUSTER}   simulated: a day of jobs on made-up"
            " nodes\n"
            f"  this node      {pages}{own_page}   live, every {_LIVE}\n"
            f"  a job          {pages}job/{_SHOWN_JOB}\n"
            f"  its report     ccagent job {_SHOWN_JOB} --store http://127.0.0.1:{self.port}\n"
            f"Ready after {time.monotonic() - began:.1f} s."
            " Ctrl-C ends it and removes everything.\n"
        )


def _end_by_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def run_demo(
    web: str,
    nodes: int,
    announce: Callable[[DemoServer], None],
    jobs: list[DemoJob] | None = None,
) -> None:
    """Run the demo until it is interrupted, then delete its data. web: address of the pages.

    Raise ConfigurationError for invalid settings.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_by_signal)
    directory = tempfile.mkdtemp(prefix="ccagent-demo-")
    every = StoredMetricSettings(frequency=Duration(_LIVE), aggregation="avg")
    settings = StoreSettings(
        data=directory, listen="127.0.0.1:0", retention=Duration("49h"),
        metrics={WILDCARD: every}, web=WebSettings(listen=web),
    )  # fmt: skip

    async def main() -> None:
        await DemoServer(check_settings(settings, "demo"), nodes, announce, jobs).run()

    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
