"""The running demo: a store with pages, the continued simulated cluster, this node live."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import shutil
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ccagent.config.duration import Duration
from ccagent.log import logger
from ccagent.machine.node import Node
from ccagent.records.line_protocol.lines import Line
from ccagent.stores.metrics.catalogue import WILDCARD
from ccagent.stores.metrics.page_settings import WebSettings
from ccagent.stores.metrics.settings import StoredMetricSettings, StoreSettings, check_settings
from ccagent.views.demo.history import CLUSTER, EVERY, SimulatedCluster
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
        for event in self._cluster.events():
            self.events.take(
                Line("job", {"function": "start_job"}, "event", json.dumps(event), None)
            )
        self.events.take_envelope(self._cluster.envelope())

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
            for moment in range(done + EVERY, now + 1, EVERY):
                for _, body in self._cluster.lines(moment):
                    self.ingest.write(body, CLUSTER)
                    await asyncio.sleep(0)
                done = moment
            await asyncio.sleep(EVERY - self.store.now() % EVERY + 0.5)

    async def _watch_node(self) -> None:
        """Run the agent that sends the metrics of this node, immediately and then periodically."""
        for cadence in (["--once"], ["--every", _LIVE]):
            code, said = await self._run_agent(cadence)
            if code:
                last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
                logger.warning("this node is not shown: %s", last or f"exit status {code}")
                return

    async def _run_agent(self, cadence: list[str]) -> tuple[int, bytes]:
        """Run the agent `metrics` once. Return its exit status and its output."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ccagent", "metrics", "--no-config", *cadence,
            "--cluster", HERE, "--sink", f"http://127.0.0.1:{self.port}/api/write/?cluster={HERE}",
            "--format", "line", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            preexec_fn=_end_with_parent,
        )  # fmt: skip
        try:
            _, said = await process.communicate()
            return process.returncode or 0, said
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), _END_WITHIN)
                except TimeoutError:
                    process.kill()


def _end_with_parent() -> None:
    """Request a signal for this process at the death of its parent, also after SIGKILL."""
    _LIBC.prctl(_PDEATHSIG, signal.SIGTERM)


def _end_by_signal(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def demo_settings(directory: str, web: str) -> StoreSettings:
    """Return the settings of a store in a directory. web: address of the pages."""
    every = StoredMetricSettings(frequency=Duration(_LIVE), aggregation="avg")
    found = StoreSettings(
        data=directory, listen="127.0.0.1:0", retention=Duration("49h"),
        metrics={WILDCARD: every}, web=WebSettings(listen=web),
    )  # fmt: skip
    return check_settings(found, "demo")


def run_demo(
    web: str,
    nodes: int,
    announce: Callable[[DemoServer], None],
    jobs: list[DemoJob] | None = None,
) -> None:
    """Run the demo until it is interrupted, then delete its data.

    Raise ConfigurationError for invalid settings.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_by_signal)
    directory = tempfile.mkdtemp(prefix="ccagent-demo-")
    try:

        async def main() -> None:
            await DemoServer(demo_settings(directory, web), nodes, announce, jobs).run()

        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _own_page() -> str:
    """Return the URL path of this node's page."""
    return f"{node_link(HERE, Node().hostname)[1:]}?range=1h"


def describe_demo(server: DemoServer, began: float) -> str:
    """Return the text for the user who has started the demo, with addresses and commands."""
    pages = server.pages.url
    job = 4711002
    return (
        f"ccagent demo: {pages}\n"
        f"  cluster demo   {pages}cluster/{CLUSTER}   simulated: a day of jobs on made-up nodes\n"
        f"  this node      {pages}{_own_page()}   live, every {_LIVE}\n"
        f"  a job          {pages}job/{job}\n"
        f"  its report     ccagent job {job} --store http://127.0.0.1:{server.port}\n"
        f"Ready after {time.monotonic() - began:.1f} s. Ctrl-C ends it and removes everything.\n"
    )
