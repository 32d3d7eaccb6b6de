"""Time of `ccagent usage` over a month with 10,000 jobs, and pictures of the page.

    python benchmarks/usage.py [--jobs 10000] [--nodes 200]
    python benchmarks/usage.py --pictures DIRECTORY

A store with a filled table of usage answers. The reference is `ccagent --version`, which queries
nothing: compare the rows with each other.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from ccagent.stores.metrics.job_details import StoredJobDetails
from ccagent.stores.metrics.job_table import StoredJob
from ccagent.stores.metrics.usage.job_energy import NodeJobEnergy
from ccagent.stores.metrics.usage.table import UsageTable
from tests.support.metric_store import RunningStore
from tests.support.page_server import open_browser
from tests.support.ports import free_port

_MONTH = 30 * 86400
_CONFIG = """
listen = "127.0.0.1:0"
[usage]
zone = "DE"
pue = 1.2
price = 0.25
"""
_PROJECTS = ("astro", "bio", "chem", "climate", "cfd", "lattice", "materials", "ml")


def fill(path: Path, count: int, nodes: int) -> None:
    """Write a table of jobs that ended in the last 30 days."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table, now = UsageTable(str(path)), int(time.time())
    chance = random.Random(35)  # noqa: S311 - data of a test
    for number in range(count):
        stop = now - chance.randrange(_MONTH)
        seconds = chance.randrange(60, 86400)
        names = {f"n{chance.randrange(nodes):03}" for _ in range(chance.choice([1, 1, 2, 8]))}
        project = min(chance.randrange(8), chance.randrange(8))
        job = StoredJob(
            "fox", str(number), f"user{chance.randrange(60):02}", "completed", stop - seconds, stop,
            tuple(names), details=StoredJobDetails(account=_PROJECTS[project]),
        )  # fmt: skip
        uses: dict[str, NodeJobEnergy] = {}
        for name in names if chance.random() < 0.98 else ():
            joules = seconds * chance.uniform(80, 400)
            below, above = chance.uniform(0.05, 0.3) * joules, chance.uniform(0.05, 0.4) * joules
            uses[name] = NodeJobEnergy({("cpu", "active"): joules}, {}, below, above)
        table.keep(job, uses, chance.uniform(250, 480))
    table.close()


def measure(*words: str) -> tuple[float, float]:
    """Return wall and CPU seconds of a command, the least of five runs."""
    found: list[tuple[float, float]] = []
    for _ in range(5):
        begin, before = time.perf_counter(), os.times()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        found.append((time.perf_counter() - begin, cpu))
    return min(found)


def main() -> None:
    """Fill a store, then measure the command or take pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory / "data/usage.sqlite", options.jobs, options.nodes)
        config, port = directory / "store.toml", free_port()
        config.write_text(_CONFIG)
        with RunningStore(
            directory, "--config", str(config), "--web", f"127.0.0.1:{port}"
        ) as store:
            if options.pictures:
                options.pictures.mkdir(parents=True, exist_ok=True)
                with open_browser() as browser:
                    for width in (1280, 400):
                        page = browser.new_page(viewport={"width": width, "height": 900})
                        page.goto(f"http://127.0.0.1:{port}/usage")
                        place = options.pictures / f"usage-{width}.png"
                        page.screenshot(path=place, full_page=True)
                        print(place)
                return
            base = (sys.executable, "-m", "ccagent")
            url = f"http://127.0.0.1:{store.port}"
            reference = measure(*base, "--version")
            print(f"ccagent --version             {reference[0]:6.2f} s, CPU {reference[1]:6.2f} s")
            for words in (("--by", "project"), ("--by", "user", "--each", "day")):
                wall, cpu = measure(*base, "usage", *words, "--store", url)
                begin = time.perf_counter()
                query = f"/api/usage/?by={words[1]}&each={''.join(words[3:])}"
                store.ask("GET", query)
                answer = time.perf_counter() - begin
                print(
                    f"usage {' '.join(words):24}{wall:6.2f} s, CPU {cpu:6.2f} s,"
                    f" {wall / reference[0]:.1f} times; the store's answer {answer:.3f} s"
                )


if __name__ == "__main__":
    main()
