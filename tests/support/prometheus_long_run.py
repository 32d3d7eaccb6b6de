"""A real Prometheus scrapes an exporter for long, in both formats, with TLS and a password.

    python -m tests.support.prometheus_long_run [MINUTES [steady]]

prints what `up` was, gaps, errors of parsing, and counters that went back although the agent was
restarted halfway; with `steady` it is not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.integration.prometheus.conftest import Exporter, Prometheus
from tests.support.certificates import Authority
from tests.support.prometheus_relay import TextRelay
from tests.support.running import CCAGENT, until


def main() -> None:
    """Run it and print the findings."""
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    with tempfile.TemporaryDirectory() as name:
        run(Path(name), minutes, restarts="steady" not in sys.argv)


def run(directory: Path, minutes: float, *, restarts: bool) -> None:
    """Scrape for some minutes below a directory."""
    (directory / "ca").mkdir()
    authority = Authority(directory / "ca")
    certificate, key = authority.certify("exporter")
    users = directory / "users"
    users.write_bytes(
        subprocess.run(
            [*CCAGENT, "export", "password", "ada"], input=b"right\n", capture_output=True,
            check=True,
        ).stdout
    )  # fmt: skip
    users.chmod(0o600)
    exporter = Exporter(directory)
    keys = (
        'names = ["ccagent", "node_exporter"]\n'
        f'certificate-file = "{certificate}"\nkey-file = "{key}"\nusers-file = "{users}"\n'
    )
    exporter.serve(keys)
    url = f"https://127.0.0.1:{exporter.port}/metrics"
    with TextRelay(url, authority.certificate) as relay:
        login = {"basic_auth": {"username": "ada", "password": "right"}}
        server = Prometheus(
            directory / "prometheus",
            [
                login | {
                    "job_name": "openmetrics", "scheme": "https",
                    "tls_config": {"ca_file": authority.certificate},
                    "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}],
                },
                login | {
                    "job_name": "text",
                    "static_configs": [{"targets": [f"127.0.0.1:{relay.port}"]}],
                },
            ],
        )  # fmt: skip
        server.wait("count(up == 1) == 2")
        time.sleep(minutes * 30)
        restart = 0.0
        if restarts:
            exporter.stop()
            stopped = time.monotonic()
            exporter.serve(keys)
            until(lambda: (server.value("sum(up)") or 0) == 2)
            restart = time.monotonic() - stopped
        time.sleep(minutes * 30)
        report(server, minutes, restart)
        server.close()
    exporter.stop()


def report(server: Prometheus, minutes: float, restart: float) -> None:
    """Print the findings of a server."""
    window = f"[{int(minutes * 60)}s]"
    down = int(restart) + 2 if restart else 0
    if restart:
        print(f"the agent was restarted once; up again within {restart:.1f} s")
    for job in ("openmetrics", "text"):
        own = f'{{job="{job}"}}'
        count = server.value(f"count_over_time(up{own}{window})")
        good = server.value(f"sum_over_time(up{own}{window})")
        samples = server.value(f"scrape_samples_scraped{own}")
        slowest = server.value(f"max_over_time(scrape_duration_seconds{own}{window})")
        name = '{__name__=~"node_.*_total|ccagent_scrape.*_total",job="' + job + '"}'
        resets = server.query(f"resets({name}{window}) > 0")
        print(f"{job}: {count:.0f} scrapes, {good:.0f} of them up; {down} may be missing")
        print(f"{job}: {samples:.0f} samples each, the slowest took {slowest:.3f} s")
        print(f"{job}: counters of the kernel that went back: {len(resets)} {resets[:3]}")
    text = server.log.read_text()
    for word in (
        "append failed",
        "duplicate sample",
        "out-of-order",
        "out of order",
        "level=error",
    ):
        print(f"log: {text.count(word)} times {word!r}")


if __name__ == "__main__":
    main()
