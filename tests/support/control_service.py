"""A control service on a composed machine, in a process of its own.

    python -m tests.support.control_service CONFIG ROOT [HANG]

HANG: a file below ROOT whose reading hangs for 20 s, as firmware may have it.
"""

from __future__ import annotations

import sys
import time

from ccagent import log
from ccagent.controls.service import ControlService
from ccagent.controls.settings import ControlSetup, load_setup
from ccagent.machine.node import Node


class HangingNode(Node):
    """A machine one of whose files hangs."""

    hanging = ""

    def read_single(self, path: str) -> bytes:
        if path == self.hanging:
            time.sleep(20)
        return super().read_single(path)


def main() -> None:
    """Run until SIGTERM."""
    config, root, *hanging = sys.argv[1:]
    log.configure(2)

    def load() -> ControlSetup:
        return load_setup(config, needs_table=True)

    hostname = str(load().table["hostname"])
    node = HangingNode(root=root, hostname=hostname, cluster="fox")
    node.hanging = hanging[0] if hanging else ""
    service = ControlService(load, node)
    service.handle_signals()
    service.run()


if __name__ == "__main__":
    main()
