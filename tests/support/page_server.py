"""A simulated cluster and a store with pages as processes, and a browser that looks at them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import urlopen

from playwright.sync_api import Browser, Page, sync_playwright


class RunningDemo:
    """A store with pages until it is interrupted. directory: where its temporary files are.

    command: the arguments of Python; by default those of the simulated cluster.
    """

    def __init__(self, directory: Path, *command: str) -> None:
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.log"
        directory.mkdir(exist_ok=True)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *(command or ("tests.support.simulated_site",))],
                stdout=output, stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(directory)},
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while "Ready" not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        found = re.search(r"(?:pages at |\A)(http://\S+)/\n", self.said())
        assert found, self.said()
        self.url = found[1]

    def said(self) -> str:
        return self.log.read_text()

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)


def fetch(url: str) -> str | None:
    """Return a page as text; None if it does not exist."""
    try:
        with urlopen(url, timeout=60) as answer:
            return str(answer.read().decode())
    except HTTPError:
        return None


class Watched:
    """A page of a browser, with all that went wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("requestfailed", lambda request: self.problems.append(request.url))
        page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type in {"error", "warning"}:
            self.problems.append(message.text)

    def _on_request(self, request: Any) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(self.url):
            self.problems.append(f"foreign: {request.url}")

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.url}{path}")
        return self.page


@contextmanager
def open_browser() -> Generator[Browser]:
    """Start Debian's Chromium without windows: a page takes it a quarter of the CPU time."""
    path = shutil.which("chromium-headless-shell")
    assert path, "apt-get install chromium-headless-shell"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watch(browser: Browser, url: str, *, width: int = 1280, **options: Any) -> Generator[Watched]:
    """Open a window of a browser. options: of playwright's context."""
    options = {"viewport": {"width": width, "height": 900}, "timezone_id": "UTC"} | options
    context = browser.new_context(**options)
    try:
        yield Watched(context.new_page(), url)
    finally:
        context.close()


def find_violations(page: Page) -> list[dict[str, Any]]:
    """Return what axe-core finds on a page."""
    # The package has no types.
    checker: Any = import_module("axe_core_python.sync_playwright").Axe()
    found: list[dict[str, Any]] = checker.run(page)["violations"]
    return found
