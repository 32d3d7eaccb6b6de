"""A store with pages, a simulated cluster with a job for each verdict, and this node.

python -m tests.support.simulated_site [--nodes NUMBER]
"""

from __future__ import annotations

import argparse

from ccagent.views.trial.running import TrialServer, run_trial
from tests.support.simulated_cluster import SimulatedCluster
from tests.support.simulated_jobs import DemoJob


def serve(nodes: int, jobs: list[DemoJob] | None = None) -> None:
    """Serve until interrupted. Print the address of the pages, then that of the store."""

    def announce(server: TrialServer) -> None:
        print(server.pages.url)
        print(f"store: http://127.0.0.1:{server.port}\nReady", flush=True)

    run_trial("127.0.0.1:0", lambda now: SimulatedCluster(now, nodes, jobs), announce)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=32)
    serve(parser.parse_args().nodes)


if __name__ == "__main__":
    main()
