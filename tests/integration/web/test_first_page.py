"""From a copy of the sources and an empty environment to a page in a browser: `ccagent try`.

commands/test_readme.py installs and tries the same without a browser: this is for the night.

HYPOTHESIS_PROFILE=nightly pytest -s -k from_nothing_to_a_page       # prints the time of each step
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from prometheus_client.parser import text_string_to_metric_families

from tests.support.built_packages import tagged_tree
from tests.support.effort import IS_NIGHTLY
from tests.support.page_server import fetch, watch
from tests.support.running import until

pytestmark = pytest.mark.skipif(not IS_NIGHTLY, reason="at night: HYPOTHESIS_PROFILE=nightly")


@contextmanager
def step(name: str) -> Generator[None]:
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:6.1f} s  {name}")


def test_from_nothing_to_a_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    source = tagged_tree(tmp_path / "ccagent")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "HOME"))}
    environment = {**kept, "PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(temporary)}
    program = str(source / ".venv/bin/ccagent")
    with step("python3 -m venv .venv"):
        subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=source, check=True)
    with step("pip install '.[web]'"):
        subprocess.run(
            [".venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", ".[web]"],
            cwd=source, env=environment, check=True,
        )  # fmt: skip
    with step("ccagent sample --once"):
        subprocess.run([program, "sample", "--once"], env=environment, check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip
    log = tmp_path / "log"
    with log.open("wb") as output, step("ccagent try, until its addresses are printed"):
        trial = subprocess.Popen([program, "try"], env=environment, cwd=tmp_path,
                                 stdout=output, stderr=subprocess.STDOUT)  # fmt: skip
        until(lambda: "Ready" in log.read_text() or trial.poll() is not None)
    try:
        told = log.read_text()
        url = re.search(r"this node +(http://\S+?)(/\S*)", told)
        exporter = re.search(r"exporter +(\S+)", told)
        assert url, told
        assert exporter, told
        with step("this node in a browser"), watch(browser, url[1]) as window:
            until(lambda: fetch(url[1] + url[2]) is not None)
            page = window.open(url[2])
            assert page.locator("main h1").is_visible()
            assert window.problems == []
        names = {each.name for each in text_string_to_metric_families(fetch(exporter[1]) or "")}
        assert "ccagent_build_info" in names
        with watch(browser, url[1]) as window:
            page = window.open("/cluster/demo/jobs")
            rows = page.locator("main table").first.inner_text()
            assert "train.py" in rows
            assert "assemble" in rows
            assert window.problems == []
    finally:
        trial.terminate()
    assert trial.wait(60) in {0, 143}
    assert list(temporary.iterdir()) == []
    assert "Traceback" not in log.read_text()
