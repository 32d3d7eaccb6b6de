"""Cost of the store's pages: first paint in a browser, size, and CPU of ten viewers.

    python benchmarks/pages.py [--nodes 1000] [--seconds 120]
    python benchmarks/pages.py --base DIRECTORY [--nodes 200]
    python benchmarks/pages.py --pictures DIRECTORY
    python benchmarks/pages.py --screens DIRECTORY

The store is that of the tests, with the given number of simulated nodes. It has a day of values
of each node (about 100 to 150 series a node) and a job of 16 nodes that has run for 24 hours. Each
page is opened five times in Debian's Chromium, for time ranges without a cached page; the median
counts. The login page, which reads no values, is measured for comparison. CPU is the store's for
one page. `--seconds`: ten viewers (five of the cluster, three of one job, two of other jobs)
request their pages every 30 s for this duration. The store's CPU without viewers is subtracted.

`--base`: also measure the pages of another version, such as of `git archive COMMIT | tar -x -C
DIRECTORY`, in turns with these, and print the ratios of medians. Without viewers.

`--pictures`: write the pictures of the READMEs, from 32 simulated nodes.

`--screens`: write a picture of each page of `ccagent try`, whose real node has sent values for less
than a minute, without jobs: 1280 and 400 pixels wide, light and dark. Print height, size of the
HTML, and what the browser complained about.
"""

from __future__ import annotations

import argparse
import gzip
import io
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.support.page_server import RunningDemo, fetch, open_browser
from tests.support.page_server import watch as open_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

_TICKS = os.sysconf("SC_CLK_TCK")
WIDE = "wide"


def serve(nodes: int) -> None:
    """Run the demo's store with a job of 16 nodes that has run for a day."""
    from tests.support import simulated_site
    from tests.support.simulated_jobs import DemoJob, demo_jobs

    wide = DemoJob(name=WIDE, user="alice", account="phys", nodes=16, cores=64, memory=200,
                   began=24.0, limit=48)  # fmt: skip
    simulated_site.serve(nodes, [wide, *demo_jobs()] if nodes > 100 else None)


class Store:
    """The store in a separate process."""

    def __init__(self, nodes: int, root: Path = Path(__file__).parent.parent) -> None:
        """Start the store of the sources below `root`, and wait until it is filled."""
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, str(root / "benchmarks/pages.py"), "--serve", "--nodes", str(nodes)],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{root}/src"},
        )  # fmt: skip
        self.url = (self.process.stdout or sys.stdin).readline().strip()
        self.seconds = time.monotonic() - begin
        if not self.url:
            sys.exit("the store did not start")

    def cpu(self) -> float:
        """Return the store's CPU seconds."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def get(self, path: str, tag: str = "") -> tuple[bytes, str]:
        """Return body and ETag of a page; the body is empty if the page has not changed."""
        request = urllib.request.Request(self.url + path)  # noqa: S310 - our own store
        request.add_header("Accept-Encoding", "gzip")
        if tag:
            request.add_header("If-None-Match", tag)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.read(), answer.headers.get("ETag", "")
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return b"", tag
            raise

    def stop(self) -> None:
        """Stop the store, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def paint(browser: Browser, url: str) -> tuple[float, float, int]:
    """Return ms to the first paint, ms to the end of loading, and transferred bytes."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(url)
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)
    found: dict[str, Any] = page.evaluate(
        "() => ({paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1,"
        " load: performance.getEntriesByType('navigation')[0].loadEventEnd,"
        " bytes: [...performance.getEntriesByType('navigation'),"
        " ...performance.getEntriesByType('resource')].reduce((a, e) => a + e.transferSize, 0)})"
    )
    context.close()
    return found["paint"], found["load"], found["bytes"]


def other_time(path: str, seconds: int) -> str:
    """Return a query string for a day with a new end, for which no page is cached."""
    end = int(time.time()) - seconds
    return f"{'&' if '?' in path else '?'}from={end - 86400}&to={end}"


def report_paints(store: Store, browser: Browser, pages: dict[str, str]) -> None:
    """Print paint times and sizes of each page."""
    head = ("page", "CPU ms", "server ms", "paint ms", "loaded ms", "sent kB", "HTML kB")
    print("{:<24}{:>9}{:>11}{:>10}{:>11}{:>9}{:>9}".format(*head))
    for name, path in pages.items():
        runs: list[tuple[float, float, int]] = []
        served: list[tuple[float, float]] = []
        body = b""
        for number in range(5):
            begin, cpu = time.perf_counter(), store.cpu()
            body, _tag = store.get(path + other_time(path, 2 * number))
            served.append((1000 * (time.perf_counter() - begin), 1000 * (store.cpu() - cpu)))
            runs.append(paint(browser, store.url + path + other_time(path, 2 * number + 1)))
        painted, loaded, sent = sorted(runs)[2]
        answered, cpu = sorted(served)[2]
        size = len(gzip.decompress(body)) if body[:2] == b"\x1f\x8b" else len(body)
        figures = (cpu, answered, painted, loaded, sent / 1000, size / 1000)
        print("{:<24}{:>9.0f}{:>11.0f}{:>10.0f}{:>11.0f}{:>9.0f}{:>9.0f}".format(name, *figures))


def compare(stores: list[Store], browser: Browser, pages: dict[str, str]) -> None:
    """Print the ratios of medians of the first store's pages to those of the second."""
    print(f"{'page':<24}{'paint':>8}{'loaded':>8}{'sent':>8}{'CPU':>8}  paint ms, sent kB of both")
    for name, path in pages.items():
        runs: list[list[tuple[float, float, int]]] = [[], []]
        cpu: list[list[float]] = [[], []]
        for number, (own, store) in itertools.product(range(7), enumerate(stores)):
            before = store.cpu()
            url = store.url + path + other_time(path, 2 * number)
            runs[own].append(paint(browser, url))
            cpu[own].append(store.cpu() - before)
        medians = [
            [*map(statistics.median, zip(*each, strict=True)), statistics.median(seconds)]
            for each, seconds in zip(runs, cpu, strict=True)
        ]
        ratios = "".join(f"{a / max(b, 0.001):>8.2f}" for a, b in zip(*medians, strict=True))
        painted = ", ".join(f"{one[0]:.0f}" for one in medians)
        print(f"{name:<24}{ratios}  {painted}; {', '.join(f'{m[2] / 1000:.1f}' for m in medians)}")


def watch(store: Store, path: str, seconds: float, delay: float) -> None:
    """Request a page as a refreshing browser does."""
    tag = ""
    time.sleep(delay)
    until = time.monotonic() + seconds - delay
    while time.monotonic() < until:
        _, tag = store.get(path, tag)
        time.sleep(30)


def report_viewers(store: Store, pages: list[str], seconds: float) -> None:
    """Print the CPU cost of viewers."""
    for path in dict.fromkeys(pages):
        store.get(path)
    before = store.cpu()
    time.sleep(seconds)
    alone = (store.cpu() - before) / seconds
    before = store.cpu()
    threads = [
        threading.Thread(target=watch, args=(store, path, seconds, 3.0 * number))
        for number, path in enumerate(pages)
    ]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    watched = (store.cpu() - before) / seconds
    print(f"{len(pages)} viewers for {seconds:.0f} s: {100 * (watched - alone):.2f} % of a core"
          f" ({100 * alone:.2f} % without them)")  # fmt: skip
    for thread in threads:
        thread.join()


def job_numbers(store: Store) -> Iterator[int]:
    """Yield the number of the wide job, then the numbers of other jobs."""
    import json

    body, _ = store.get("data/cluster/demo/jobs?range=48h")
    jobs: list[dict[str, Any]] = json.loads(gzip.decompress(body))["jobs"]
    yield from (int(one["job"]) for one in jobs if one["name"] == WIDE)
    yield from (int(one["job"]) for one in jobs if one["name"] != WIDE)


def make_pictures(directory: Path) -> None:
    """Write pictures of the cluster page and the job page."""
    directory.mkdir(parents=True, exist_ok=True)
    store = Store(32)
    with open_browser() as browser:
        for name, path, height in (
            ("cluster", "cluster/demo", 1180), ("job", "cluster/demo/job/4711002", 960),
        ):  # fmt: skip
            page = browser.new_page(viewport={"width": 1080, "height": height})
            page.goto(store.url + path)
            page.wait_for_load_state("load")
            place = directory / f"{name}.png"
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.quantize(96, dither=Image.Dither.NONE).save(place, optimize=True)
            print(f"{place}: {place.stat().st_size / 1000:.0f} kB")
    store.stop()


def make_screens(directory: Path) -> None:
    """Write pictures of all pages of a trial, at both widths and in both colour schemes."""
    directory.mkdir(parents=True, exist_ok=True)
    node = f"/cluster/here/node/{socket.gethostname().partition('.')[0]}"
    pages = {
        "front": "/", "cluster": "/cluster/demo", "jobs": "/cluster/demo/jobs",
        "job": "/cluster/demo/job/4711002", "job-of-nodes": "/cluster/demo/job/4711001",
        "node": "/cluster/demo/node/g001", "usage": "/usage", "young-cluster": "/cluster/here",
        "young-node": node, "young-jobs": "/cluster/here/jobs", "login": "/login",
        "nothing": "/cluster/nothing",
    }  # fmt: skip
    print(f"{'page':<15}{'width':>6} {'scheme':<6}{'height':>7}{'HTML kB':>9}  problems")
    with (
        tempfile.TemporaryDirectory() as temporary,
        RunningDemo(Path(temporary) / "trial", "ccagent", "try") as trial,
        open_browser() as browser,
    ):
        time.sleep(30)  # some values of the real node
        for (name, path), width, scheme in itertools.product(
            pages.items(), (1280, 400), ("light", "dark")
        ):
            with open_window(browser, trial.url, width=width, color_scheme=scheme) as window:
                page = window.open(path)
                page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
                height = page.evaluate("document.documentElement.scrollHeight")
                size = len(fetch(f"{trial.url}{path}") or "") / 1000
                problems = [one for one in window.problems if "404" not in one]
                print(f"{name:<15}{width:>6} {scheme:<6}{height:>7}{size:>9.1f}  {problems or ''}")


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=120, help="a multiple of 60")
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--screens", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.nodes)
        return
    if options.pictures:
        make_pictures(options.pictures)
        return
    if options.screens:
        make_screens(options.screens)
        return
    store = Store(options.nodes)
    try:
        print(f"a store with {options.nodes} nodes was filled after {store.seconds:.1f} s")
        wide, *others = list(job_numbers(store))[:3]
        measured = {
            "login (no values)": "login",
            f"cluster, {options.nodes} nodes": "cluster/demo",
            "job, 16 nodes, 24 h": f"cluster/demo/job/{wide}",
            "node": "cluster/demo/node/c001",
            "jobs": "cluster/demo/jobs",
            "job, with Bokeh": f"cluster/demo/job/{wide}?zoom=1",
        }
        with open_browser() as browser:
            if options.base:
                base = Store(options.nodes, options.base)
                try:
                    compare([store, base], browser, measured)
                finally:
                    base.stop()
                return
            report_paints(store, browser, measured)
        pages = ["cluster/demo"] * 5 + [f"cluster/demo/job/{wide}"] * 3
        pages += [f"cluster/demo/job/{one}" for one in others]
        report_viewers(store, pages, options.seconds)
    finally:
        store.stop()


if __name__ == "__main__":
    main()
