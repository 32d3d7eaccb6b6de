"""Kill a metric store with -9 under load, and count missing acknowledged values.

    python benchmarks/store_kills.py [--kills 100]

Tokens with roles are checked. Clients are in this process, one connection a node.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.servers import free_port, server
from benchmarks.store_server import CONNECTIONS, METRICS, StoreBench, report, store_command, token


def measure_kills(kills: int, directory: str) -> None:
    """Kill the store under load of one connection a node. Count missing values."""
    port, (public, jwt) = free_port(), token()
    Path(directory, "store.toml").write_text(f'retention = "40d"\njwt-public-key = "{public}"\n')
    begin = int(time.time()) // 60 * 60 - 25 * 86400
    acknowledged = [0] * CONNECTIONS
    longest, points, busy, missing = 0.0, 0, 0.0, 0
    for turn in range(kills + 1):
        start = time.monotonic()
        with (
            server(port, *store_command(directory, port)) as process,
            StoreBench(process, port, jwt) as bench,
        ):
            longest = max(longest, time.monotonic() - start)
            if turn == kills:
                missing = bench.count_missing(acknowledged, begin)
                break
            start = time.monotonic()
            end = start + 0.3 + 0.05 * (turn % 7)
            killer = threading.Timer(end - start, process.kill)
            killer.start()
            points -= sum(acknowledged)
            with contextlib.suppress(OSError):
                while True:
                    bench.send_next(acknowledged, begin)
            points += sum(acknowledged)
            busy += time.monotonic() - start
            killer.join()
    report(f"acknowledged POSTs, {kills} kills", f"{sum(acknowledged):,}")
    report("points a second under the load", f"{points * METRICS / busy:,.0f}")
    report("values missing or wrong", f"{missing:,}")
    report("longest start", f"{longest:.1f} s")


def main() -> None:
    """Run the measurement of the command line."""
    parser = argparse.ArgumentParser(description="Kill the metric store under load.")
    parser.add_argument("--kills", type=int, default=100)
    with tempfile.TemporaryDirectory() as directory:
        measure_kills(parser.parse_args().kills, directory)


if __name__ == "__main__":
    main()
