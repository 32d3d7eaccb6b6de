"""Who uses the file systems now: a job that begins to hammer the MDS, and slow OSTs."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ccagent.agents.lustre.metric import parse_parameters
from ccagent.agents.lustre.statistics import points_of
from ccagent.stores.jobstats.live import find_beginning
from tests.integration.jobstats.test_jobstats_clusters import jobs
from tests.integration.jobstats.test_jobstats_server import ask_commands
from tests.support.jobstats_store import BEGIN, RunningJobstatsStore, record
from tests.support.lustre_server import SimulatedTarget
from tests.support.running import until

MINUTE = 60
BUSY = Path(__file__).parents[2] / "data/lustre/params/mds_oss_busy.txt"


def at(minutes: float) -> str:
    return (BEGIN + timedelta(minutes=minutes)).isoformat()


def fill(store: RunningJobstatsStore) -> None:
    """Two hours: a quiet job that writes, and one that opens files from minute 100 on."""
    array: list[dict[str, Any]] = []
    for minute in range(0, 122, 2):
        seconds = minute * MINUTE
        written = {"write_bytes": seconds * 1000, "write": seconds, "write_usecs": seconds * 500}
        array.append(record(seconds, written, entry_id="7:1000:c1"))
        opened = minute * 120 + max(0, minute - 100) * MINUTE * 500
        metadata = {"target": "fs-MDT0000", "server": "m", "entry_id": "42:1001:c2"}
        array.append(record(minute * MINUTE, {"open": opened, "close": opened // 2}, **metadata))
    assert store.post(array).status == 200
    assert store.ask("POST", "/job", jobs("fox", "physics")).status == 200


def live(store: RunningJobstatsStore, minutes: float, more: str = "") -> Any:
    moment = at(minutes).replace("+", "%2B")
    answer = store.ask("GET", f"/live?at={moment}{more}")
    assert answer.status == 200, answer.body
    return answer.json()


def state_of(minutes: float, reads: int, usecs: int) -> str:
    """Return the points of a recorded server's targets, of which one has done more reads."""
    content = BUSY.read_bytes()
    content = content.replace(b"95047172 samples [usecs]", b"%d samples [usecs]" % reads)
    content = content.replace(b" 484812403750 ", b" %d " % usecs)
    tags = {"cluster": "fox", "hostname": "a", "type": "node"}
    groups = ["stats", "md-stats", "capacity", "exports", "locks", "health"]
    moment = (BEGIN + timedelta(minutes=minutes)).timestamp()
    points = points_of(parse_parameters(content), groups, tags, moment, [])
    return "".join(f"{point.encode_line()[1]}\n" for point in points)


def test_a_slow_target_and_the_jobs_on_it_are_one_query(store: RunningJobstatsStore) -> None:
    for minute, reads, usecs in ((0, 0, 0), (60, 1000, 500_000), (62, 1200, 2_100_000)):
        answer = store.ask("POST", "/write", state_of(minute, reads, usecs))
        assert (answer.status, answer.json()["states"]) == (200, 3)
        assert answer.json()["ignored"] > 3
        answer = store.ask("POST", "/write", "lustre_ost_locks,stype=filesystem value=\n")
        assert (answer.status, len(answer.json()["records"])) == (400, 1)
    slow, other = "ai400x2-OST0001", "ai400x2-OST0000"
    for target, job in ((slow, 7), (other, 8)):
        rows = [
            record(60 * minute, {"read_bytes": minute}, target=target, entry_id=f"{job}:1:c1")
            for minute in (58, 60, 62)
        ]
        assert store.post(rows).status == 200
    found = live(store, 62.1, f"&target={slow}")
    assert [job["job"] for job in found["jobs"]] == ["7"]
    targets = {one["target"]: one for one in found["targets"]}
    assert (targets[slow]["clients"], targets[slow]["locks"]) == (12, 364)
    assert targets[slow]["free"] == pytest.approx(0.8, abs=0.2)
    assert targets[slow]["latency"] == pytest.approx(8000)
    assert targets[slow]["slower"] == pytest.approx(16)
    assert targets[other]["latency"] is None
    shown = ask_commands("live", "--url", store.url, "--once", "--at", at(62.1)).stdout
    assert re.search(rf"{slow} .*8.00 ms, 16.0 times +\d+% +12 +364", shown)


def test_all_details_of_operations_are_counted(store: RunningJobstatsStore, tmp_path: Path) -> None:
    target = SimulatedTarget("fs-OST0000", "obdfilter")
    entry, now, long = "7:1000:c1", time.time() - 10, 3 * 10**9
    for size, reads in ((8192, 2), (4096, 1)):
        now += 1
        target.do(entry, "write_bytes", 10, size, now=now)
        target.do(entry, "write", 10, size // 16, now=now)
        target.do(entry, "read", reads, long, now=now)
        (dump := tmp_path / "dump").write_bytes(target.parameter("2.17", now))
        details = 'details=["usecs", "min", "max", "sumsq", "hist"]'
        options = ("--no-config", "--input", str(dump), "--set", details, "--sink", store.url)
        subprocess.run([sys.executable, "-m", "ccagent", "lustre", "--once", *options], check=True)
    answer = store.ask("GET", "/job/7").json()
    totals = {one["operation"]: one["total"] for one in answer["totals"]}
    # The smallest and the largest values have no sums. The sum of squares of reads has overflowed.
    assert totals == {
        "write_bytes": 40960, "write_bytes_sumsq": 10 * 4096**2, "write_bytes_hist_4096": 10,
        "write": 10, "write_usecs": 2560, "write_sumsq": 10 * 256**2,
        "read": 1, "read_usecs": long, "read_sumsq": long**2,
    }  # fmt: skip
    answer = store.ask("GET", "/top?sort=write_min")
    assert (answer.status, "no sums" in answer.body.decode()) == (400, True)
    (found,) = store.ask("GET", "/live").json()["targets"]
    assert (found["write_latency"], found["read_latency"]) == pytest.approx((256.0, long))


def test_a_job_that_hammers_the_mds_is_first(store: RunningJobstatsStore) -> None:
    fill(store)
    before = live(store, 98, "&sort=metadata")
    assert before["jobs"][0]["metadata"] == pytest.approx(3.0)
    found = live(store, 104, "&sort=metadata")["jobs"][0]
    assert (found["job"], found["user"], found["account"]) == ("42", "u-fox", "physics")
    assert (found["file_system"], found["nodes"], found["state"]) == ("fs", 1, "RUNNING")
    assert found["metadata"] == pytest.approx(753.0)
    assert (found["dominant"], found["dominant_rate"]) == ("open", pytest.approx(502.0))
    assert found["since"] == at(100)
    assert found["factor"] == pytest.approx(251.0, rel=0.01)
    assert found["share"] == 1.0


def test_targets_have_rates_latencies_and_their_hour_before(store: RunningJobstatsStore) -> None:
    fill(store)
    mdt, ost = live(store, 104)["targets"]
    assert (ost["target"], ost["write_bytes"], ost["seconds"]) == ("fs-OST0000", 1000.0, 120.0)
    assert (ost["write_latency"], ost["read_latency"]) == (500.0, None)
    assert ost["factor"] == pytest.approx(1.0, rel=0.05)
    assert mdt["factor"] == pytest.approx(251.0, rel=0.05)


def test_filters_keep_the_share_of_all(store: RunningJobstatsStore) -> None:
    fill(store)
    (found,) = live(store, 104, "&user=1001&sort=metadata")["jobs"]
    assert (found["job"], found["share"]) == ("42", 1.0)
    assert [one["job"] for one in live(store, 104, "&node=c1")["jobs"]] == ["7"]


def test_a_filter_knows_the_users_that_are_shown(store: RunningJobstatsStore) -> None:
    fill(store)
    assert [one["user"] for one in live(store, 104, "&user=u-fox")["jobs"]] == ["u-fox"]


def test_the_screen_is_refreshed_and_takes_keys(store: RunningJobstatsStore) -> None:
    fill(store)
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "ccagent", "jobstats", "live", "--url", store.url]
    command += ["--every", "1s", "--window", "30d"]
    process = subprocess.Popen(command, stdin=its_end, stdout=its_end)
    os.close(its_end)
    os.set_blocking(terminal, False)
    shown = bytearray()

    def has(text: bytes) -> bool:
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(terminal, 1 << 16))
        return text in shown

    until(lambda: has(b"sort: share, every 1 s"))
    assert has(b"fs-MDT0000")
    os.write(terminal, b"ss")
    until(lambda: has(b"sort: metadata"))
    os.write(terminal, b"q")
    until(lambda: has(b"\x1b[?1049l"))
    assert process.wait(30) == 0
    os.close(terminal)


def test_the_command_prints_both_tables(store: RunningJobstatsStore) -> None:
    fill(store)
    arguments = ("live", "--url", store.url, "--once")
    done = ask_commands(*arguments, "--at", at(104), "--sort", "metadata")
    assert done.returncode == 0, done.stderr
    _, targets, listed = done.stdout.split("\n\n")
    assert targets.splitlines()[2].split()[0] == "fs-OST0000"
    assert "0.50 ms" in targets
    assert listed.splitlines()[1].split()[:3] == ["42", "fs", "u-fox"]
    done = ask_commands(*arguments)
    assert (done.returncode, done.stdout.splitlines()[1]) == (
        0, "no records in the 300 s before this time",
    )  # fmt: skip


def test_a_job_begins_with_its_summary(store: RunningJobstatsStore) -> None:
    fill(store)
    other = {"entry_id": "8:1002:c3"}
    store.post([record(0, {"write_bytes": 0}, **other), record(60, {"write_bytes": 9}, **other)])
    arguments = ("job", "7", "--url", store.url, "--from", at(0), "--to", at(122))
    done = ask_commands(*arguments)
    summary = done.stdout.split("\n\n")[1].splitlines()
    assert [cell.strip() for cell in re.split(r"  +", summary[1])] == [
        "fs", "0 B", "6.9 MiB", "0", "0.50 ms", "1 of 3 jobs", "2 of 3 jobs",
    ]  # fmt: skip
    assert len(summary) == 2
    assert re.search(
        r"fs-OST0000  write_bytes +6.9 MiB", ask_commands(*arguments, "--series").stdout
    )


@pytest.mark.parametrize(
    ("deltas", "since", "factor"),
    [
        ([], 0.0, None),
        ([(0, 60, 60)], 0, None),
        ([(0, 3600, 3600), (3600, 3660, 600)], 3600, 10.0),
        # Two targets whose readings differ by some seconds.
        ([(0, 3600, 3600), (3600, 3660, 300), (3605, 3665, 300)], 3600, 9.6),
        # A job that did nothing for some time.
        ([(0, 60, 600), (60, 7200, 0), (7200, 7260, 600)], 7200, None),
    ],
)
def test_the_beginning_of_a_rate(
    deltas: list[tuple[float, float, float]], since: float, factor: float | None
) -> None:
    begins, times = find_beginning(deltas)
    assert begins == since
    assert times == (None if factor is None else pytest.approx(factor, rel=0.1))
