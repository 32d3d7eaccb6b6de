"""`ccagent job` with a real store: figures, verdicts, forms, exit statuses."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from reportseff.job import Job

from tests.integration.views.conftest import JobStore

GOOD = {"job_cpu_util": 1520.0, "job_mem_rss": 50.0, "job_mem_used": 60.0, "job_mem_peak": 61.0}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ccagent", "job", *arguments], capture_output=True, text=True,
        check=False, timeout=60, env={"PATH": "/usr/bin:/bin", "HOME": "/", **environment},
    )  # fmt: skip


def test_an_unknown_job_costs_itself(jobs: JobStore) -> None:
    number, other = jobs.add(GOOD), jobs.add(GOOD)
    found = run(number, "99999999", other, "--store", jobs.url)
    assert found.returncode == 1
    assert found.stdout.count("nothing to improve") == 2
    assert found.stderr.startswith("ccagent: job 99999999: unknown to ")
    assert len(found.stderr.splitlines()) == 1


def test_a_name_that_no_host_has_is_a_sentence() -> None:
    found = run("1", "--store", f"http://{'a' * 80}:8082")
    assert found.returncode == 1
    assert found.stderr.endswith("the name does not resolve: it is not a host name\n")


def report(jobs: JobStore, number: str) -> Any:
    found = run(number, "--store", jobs.url, "--json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_a_good_job_has_nothing_to_improve(jobs: JobStore) -> None:
    number = jobs.add(GOOD)
    found = run(number, "--store", jobs.url)
    assert (found.returncode, found.stderr) == (0, "")
    lines = found.stdout.splitlines()
    assert lines[0] == f"Job {number} relax.sh  alice/phys normal  COMPLETED  fox n1"
    assert lines[1] == (
        "ran 2:00:00 of 3:00:00 (67 %)   16 cores   64 GB   no GPU   120 samples, 100 %"
    )
    assert lines[-1] == "ok      nothing to improve"
    assert max(map(len, lines)) <= 80


def test_figures_are_those_of_the_store(jobs: JobStore) -> None:
    number = jobs.add(GOOD | {"job_cpu_util": 1234.5}, nodes=("n1", "n2"))
    found = report(jobs, number)
    by_hand = jobs.store.query(
        jobs.start, jobs.end,
        *({"metric": metric, "host": node, "type": "job", "type-ids": [number]}
          for node in ("n1", "n2") for metric in ("job_cpu_util", "job_mem_rss")),
    )  # fmt: skip
    util, memory = by_hand[0][0], by_hand[1][0]
    assert found["efficiency"]["cpu"]["used"] == pytest.approx(2 * util["avg"] / 100 * 7200)
    assert found["efficiency"]["cpu"]["percent"] == pytest.approx(1234.5 / 16, abs=0.001)
    assert found["efficiency"]["memory"]["used"] == pytest.approx(2 * memory["max"] * 1e9)
    assert [node["samples"] for node in found["job"]["nodes"]] == [120, 120]


def test_mounts_and_network_come_from_the_store(jobs: JobStore) -> None:
    number, without = jobs.add(GOOD, nodes=("n1", "n2")), jobs.add(GOOD)
    tags = f"cluster=fox,type=node,stype=job,stype-id={number}"
    home = "mountpoint=/my\\ home,fstype=nfs4,source=nfs1:/home"
    way = "layer=socket,proto=tcp,loopback=no"
    lines = [
        f"{metric},{tags},hostname={node},{more} value={value} {jobs.start + 60 * step}"
        for node in ("n1", "n2")
        for step in range(120)
        for metric, more, value in (
            ("job_fs_read", home, 1024), ("job_fs_reads", home, 2),
            ("job_fs_write", "mountpoint=/tmp,fstype=xfs", 10), ("job_net_sent", way, 5),
        )
    ]  # fmt: skip
    assert jobs.store.write("\n".join(lines)).status == 200
    found = report(jobs, number)["mounts"]
    assert [(one["point"], one["read"], one["written"]) for one in found["mounts"]] == [
        ("/my home", 2 * 7200 * 1024, 0), ("/tmp", 0, 2 * 7200 * 10),
    ]  # fmt: skip
    assert [(one["protocol"], one["sent"]) for one in found["network"]] == [("tcp", 2 * 7200 * 5)]
    text = run(number, "--store", jobs.url, "--plain").stdout
    assert "mounts  /my home nfs4: 14MB read in 28800 calls" in text
    assert "network TCP: 0B received, 70KB sent" in text
    assert "mounts" not in report(jobs, without)


def test_time_in_calls_on_a_mount_is_a_cause(jobs: JobStore) -> None:
    number = jobs.add(GOOD | {"job_cpu_util": 200.0})
    tags = f"cluster=fox,type=node,stype=job,stype-id={number},hostname=n1"
    mount = "mountpoint=/data,fstype=nfs4,source=nfs1:/data"
    lines = [
        f"{metric},{tags},{mount} value={value} {jobs.start + 60 * step}"
        for step in range(120)
        for metric, value in (
            ("job_fs_read", 4e6), ("job_fs_reads", 100), ("job_fs_read_time", 80_000),
        )
    ]  # fmt: skip
    assert jobs.store.write("\n".join(lines)).status == 200
    found = report(jobs, number)
    assert found["mounts"]["mounts"][0]["busy"] == pytest.approx(8 * 7200)
    assert [one["rule"] for one in found["findings"]] == ["wait-mount"]
    assert found["findings"][0]["text"].startswith(
        "it waited for /data (nfs4): 80 ms a read or write, 80 % of its tasks' time"
    )


def test_jobs_that_share_a_node_are_told_apart(jobs: JobStore) -> None:
    one = jobs.add(GOOD | {"job_cpu_util": 1600.0})
    other = jobs.add(GOOD | {"job_cpu_util": 100.0})
    assert report(jobs, one)["efficiency"]["cpu"]["percent"] == 100.0
    assert report(jobs, other)["verdict"] == "BAD"
    assert report(jobs, other)["findings"][0]["rule"] == "serial"


@pytest.mark.parametrize(
    ("values", "more", "rule", "level"),
    [
        ({"job_cpu_util": 0.1}, {}, "cpu-zero", "BAD"),
        ({"job_cpu_util": 400.0}, {}, "cpu-low", "BAD"),
        ({"job_mem_rss": 62.0}, {}, "mem-limit", "hint"),
        ({"job_oom_kills": 2.0}, {"state": "out_of_memory"}, "mem-limit", "BAD"),
        ({"job_mem_rss": 1.0}, {}, "mem-excess", "BAD"),
        ({}, {"walltime": 100_000}, "time", "BAD"),
        ({}, {"state": "timeout"}, "time", "BAD"),
        ({}, {"gpu": [0.0]}, "gpu-idle", "BAD"),
        ({}, {"gpu": [10.0, 12.0]}, "gpu-input", "BAD"),
        ({"job_cpu_util": 800.0}, {"gpu": [10.0, 12.0]}, "gpu-low", "BAD"),
        ({"job_cpu_util": 400.0, "job_pressure_io": 50.0}, {}, "wait-io", "BAD"),
        ({"job_cpu_util": 400.0, "job_pressure_memory": 35.0}, {}, "mem-pressure", "hint"),
        ({"job_cpu_util": 20.0}, {"metaData": {"jobName": "sys/dashboard/sys/x"}}, "session", "ok"),
        ({}, {"samples": 60}, "unknown", "unknown"),
        ({}, {"samples": 1}, "short", "unknown"),
        ({}, {"samples": 1, "seconds": 90}, "short", "short"),
    ],
)  # fmt: skip
def test_verdicts(
    jobs: JobStore, values: dict[str, float], more: dict[str, Any], rule: str, level: str
) -> None:
    found = report(jobs, jobs.add(GOOD | values, **more))
    assert (found["findings"][0]["rule"], found["verdict"]) == (rule, level)


def test_page_cache_is_not_the_memory_of_the_programs(jobs: JobStore) -> None:
    number = jobs.add(GOOD | {"job_mem_used": 68.0, "job_mem_peak": 68.7})
    found = report(jobs, number)
    assert found["verdict"] == "ok"
    assert found["efficiency"]["charged"]["percent"] > 99


def test_reportseff_reads_the_summary(jobs: JobStore) -> None:
    number = jobs.add(GOOD, nodes=("n1", "n2"))
    found = run(number, "--store", jobs.url, "--js1")
    assert found.stdout.startswith("JS1:H4s")
    read = Job(number, number, None)
    read.update({
        "JobID": number, "State": "COMPLETED", "Elapsed": "02:00:00", "Timelimit": "03:00:00",
        "TotalCPU": "00:00:01", "AllocCPUS": "32", "ReqMem": "128G", "NNodes": "2",
        "AdminComment": found.stdout.strip(),
    })  # fmt: skip
    assert (read.cpu, read.mem_eff) == (95.0, pytest.approx(72.8, abs=0.1))
    assert list(read.get_node_entries("JobID")) == [number, "  n1", "  n2"]


def test_short_jobs_and_jobs_without_data_have_their_tags(jobs: JobStore) -> None:
    assert (
        run(jobs.add(GOOD, samples=1, seconds=90), "--store", jobs.url, "--js1").stdout
        == "JS1:Short\n"
    )
    found = run(jobs.add({}), "--store", jobs.url, "--js1")
    assert (found.stdout, found.returncode) == ("JS1:None\n", 3)


def test_unknown_jobs_are_an_error_with_status_1(jobs: JobStore) -> None:
    found = run("99", "--store", jobs.url)
    assert found.returncode == 1
    assert f"job 99: unknown to {jobs.url}" in found.stderr


def test_job_numbers_are_numbers(jobs: JobStore) -> None:
    for text in ("1_2", "x", "1&cluster=x", "-1"):
        assert run("--store", jobs.url, "--", text).returncode == 2


def test_a_number_of_two_clusters_needs_one(jobs: JobStore) -> None:
    number = jobs.add(GOOD)
    jobs._number -= 1
    jobs.add(GOOD, cluster="owl")
    assert "in the clusters fox, owl" in run(number, "--store", jobs.url).stderr
    assert "  owl n1" in run(number, "--store", jobs.url, "--cluster", "owl").stdout


def test_names_of_jobs_cannot_control_the_terminal(jobs: JobStore) -> None:
    name = "\x1b[2J\x07\u202eevil\u05d0\u0301<script>" + "x" * 500
    number = jobs.add(GOOD, metaData={"jobName": name})
    found = run(number, "--store", jobs.url, "--plain", PYTHONIOENCODING="utf-8")
    assert found.stdout.isprintable() or {"\n"} == {c for c in found.stdout if not c.isprintable()}
    assert "\u202e" not in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80


def test_an_output_in_ascii_is_no_error(jobs: JobStore) -> None:
    number = jobs.add(GOOD, metaData={"jobName": "\u6bd4\u8f03"})
    assert run(number, "--store", jobs.url, PYTHONIOENCODING="ascii").returncode == 0


def test_a_store_that_does_not_answer_is_a_sentence() -> None:
    found = run("1", "--store", "http://127.0.0.1:1")
    assert found.returncode == 1
    assert "http://127.0.0.1:1: connection refused" in found.stderr


@contextmanager
def serving(status: int, body: bytes) -> Generator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>\x1b[2J", "not the response of a metric store"),
        (200, b"[[1]]", "not the response of a metric store"),
        (401, b"\x1b[2Jno", "401: \\x1b[2Jno; see token-file"),
        (404, b"", "(404)"), (500, b"", "status 500"), (302, b"", "status 302"),
    ],
)  # fmt: skip
def test_odd_answers_are_sentences(status: int, body: bytes, sentence: str) -> None:
    with serving(status, body) as url:
        found = run("1", "--store", url)
    assert found.returncode == 1
    assert sentence in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("line", [b"X-Slow: 1\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_the_time_limit_is_for_a_whole_answer(tmp_path: Path, line: bytes) -> None:
    config = tmp_path / "views.toml"
    config.write_text('time-limit = "1s"\n')

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):  # until the client has enough
                self.request.recv(1 << 16)
                self.request.sendall(b"HTTP/1.1 200 OK\r\n" if line[:1] == b"X" else line)
                while True:
                    self.request.sendall(line)
                    time.sleep(0.2)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        found = run("1", "--config", str(config),
                    "--store", f"http://127.0.0.1:{server.server_address[1]}")  # fmt: skip
        thread.join()
    assert found.returncode == 1
    assert "no answer within 1 s" in found.stderr


def test_a_node_without_the_job_says_so() -> None:
    found = run("999999999")
    assert found.returncode == 1
    assert "does not run on this node" in found.stderr
