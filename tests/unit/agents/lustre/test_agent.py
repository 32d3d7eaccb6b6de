"""The agent `lustre`: from text to records and points."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from ccagent.agents.lustre.agent import LustreAgent, LustreSettings
from ccagent.agents.lustre.jobstats.records import OPERATIONS, JobTotals
from ccagent.agents.lustre.jobstats.series import Series
from ccagent.config.files import convert
from ccagent.errors import ConfigurationError, NotHereError
from ccagent.records.encoding import encode
from ccagent.records.message import Format
from tests.support.lustre_server import SimulatedTarget
from tests.support.paths import DATA
from tests.support.running import CCAGENT
from tests.support.tree import TreeNode

NAMESPACE = "2e79b8a1-c4fc-45ba-9023-d16fdce6e3fe"
SEED = """\
obdfilter.scratch-OST0001.job_stats=
job_stats:
- job_id:          11317854:17627127:r01c01
  snapshot_time:   1669010520
  read_bytes:      { samples:        7754, unit: bytes, min: 4096, max: 4096, sum: 31760384 }
  write_bytes:     { samples:        4284, unit: bytes, min: 4096, max: 4096, sum: 17547264 }
  setattr:         { samples:           0, unit:  reqs }
"""


class Server:
    """A node with job_stats files, and what its agent says."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.node = TreeNode(directory)
        self.node.names[1001] = "ada"
        self.settings = settings
        self.agent = self.new_agent()

    def new_agent(self, wanted: Format = "sonar") -> LustreAgent:
        settings = {"lctl": "/nowhere/lctl", **self.settings}
        return LustreAgent(
            convert(settings, LustreSettings, "agents.lustre", place="test"), frozenset({wanted})
        )

    def write(self, text: str | bytes, target: str = "obdfilter/scratch-OST0001") -> Path:
        """Write the file of a target."""
        content = text.encode() if isinstance(text, str) else text
        name = f"fs/lustre/{target}/job_stats"
        self.node.write(name, content.replace(b"obdfilter.scratch-OST0001.job_stats=\n", b""))
        return self.node.path / "proc" / name

    def records(self, agent: LustreAgent | None = None) -> list[dict[str, Any]]:
        """Take a sample; two minutes go by."""
        agent = agent or self.agent
        messages = encode(agent.sample(self.node), "sonar", self.node)
        agent.save_state()
        self.node.still.sleep(120)
        assert {message.kind for message in messages} <= {"lustre"}
        return [record for message in messages for record in json.loads(message.body)]

    def points(self, agent: LustreAgent) -> dict[str, str]:
        """Take a sample and give the values by name and scope; two minutes go by."""
        (message,) = encode(agent.sample(self.node), "line", self.node)
        self.node.still.sleep(120)
        found: dict[str, str] = {}
        for line in message.body.decode().splitlines():
            series, value, _ = line.rsplit(" ", 2)
            name, _, tags = series.partition(",")
            scope = tags.removeprefix("cluster=test.org,hostname=c1-1,")
            found[f"{name} {scope.removesuffix(',type=node')}"] = value.removeprefix("value=")
        return found


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


class TestRecords:
    def test_they_are_those_of_the_seed(self, tmp_path: Path) -> None:
        server = Server(tmp_path, namespaces={"%j:%u:%H": NAMESPACE})
        server.write(SEED)
        (record,) = server.records()
        assert record == {
            "target": "scratch-OST0001",
            "entry_id": "11317854:17627127:r01c01",
            "server": "c1-1",
            "timestamp": "2023-11-14T22:30:00.000+00:00",
            "snapshot_time": 1669010520,
            "read": 7754,
            "write": 4284,
            "read_bytes": 31760384,
            "write_bytes": 17547264,
            "setattr": 0,
            "punch": 0,
            "sync": 0,
            "get_info": 0,
            "set_info": 0,
            "quotactl": 0,
            "job_id": 11317854,
            "user_id": 17627127,
            "nodename": "r01c01",
            "time_series_id": "af854063-c381-585f-b551-ce0b6c4440a3",
        }

    @pytest.mark.parametrize(
        ("details", "numbers"),
        [
            (None, {"write_usecs": 7019021, "punch_usecs": 5259}),
            ([], {}),
            (
                ["min", "max", "sumsq"],
                {
                    "write_bytes_min": 4096,
                    "write_bytes_max": 16777216,
                    "write_bytes_sumsq": 166064207635152896,
                    "punch_max": 354,
                },
            ),
            (["hist"], {"write_bytes_hist_4096": 1, "write_bytes_hist_16777216": 665}),
        ],
    )
    def test_numbers_besides_samples_and_bytes(
        self, tmp_path: Path, details: list[str] | None, numbers: dict[str, int]
    ) -> None:
        server = Server(tmp_path, **({} if details is None else {"details": details}))
        text = (DATA / "lustre/captures/jobstats_2.14.0_ddn162.txt").read_bytes()
        server.write(text.partition(b"\n")[2], "obdfilter/es01a-OST0001")
        record = next(one for one in server.records() if one["entry_id"].startswith("SLURM_JOB20"))
        assert numbers.items() <= record.items()
        assert ("write_usecs" in record) == (details is None)
        assert ("write_bytes_min" in record) == ("min" in (details or ()))

    def test_a_new_series_begins_with_zeros_at_the_observation_before(self, server: Server) -> None:
        server.write("job_stats:\n")
        assert server.records() == []
        server.write(SEED)
        begin, now = server.records()
        assert begin["timestamp"] == "2023-11-14T22:30:00.000+00:00"
        assert now["timestamp"] == "2023-11-14T22:32:00.000+00:00"
        assert begin["snapshot_time"] is None
        assert begin.keys() == now.keys()
        assert {begin[name] for name in OPERATIONS["obdfilter"]} == {0}

    def test_dense_ones_have_the_seeds_counters(self, server: Server) -> None:
        server.write(
            "job_stats:\n- job_id:          a.1001\n  snapshot_time:   5\n", "mdt/x-MDT0000"
        )
        (record,) = server.records()
        assert [name for name in record if name in OPERATIONS["mdt"]] == list(OPERATIONS["mdt"])
        assert record["user"] == "ada"

    def test_sparse_ones_leave_zeros_out(self, tmp_path: Path) -> None:
        server = Server(tmp_path, sparse=True)
        server.write(SEED)
        (record,) = server.records()
        assert "setattr" not in record
        assert record["write_bytes"] == 17547264

    def test_lustre_2_5_counts_bytes_under_other_names(self, server: Server) -> None:
        server.write(SEED.replace("read_bytes: ", "read: ").replace("write_bytes: ", "write: "))
        (record,) = server.records()
        assert (record["read"], record["read_bytes"]) == (7754, 31760384)

    def test_an_entry_that_is_listed_twice_is_one_record(self, server: Server) -> None:
        server.write(SEED + SEED.partition("job_stats:\n")[2].replace("31760384", "31760385"))
        assert [record["read_bytes"] for record in server.records()] == [31760384]
        server.agent.is_only_sample = True
        assert len(server.records()) == 1

    def test_one_that_was_skipped_once_counts_once(self, server: Server) -> None:
        server.write(SEED.replace("31760384", "1000"))
        server.records()
        server.write("job_stats:\n")
        server.records()
        server.write(SEED.replace("31760384", "1000"))
        (record,) = server.records()
        assert record["read_bytes"] == 1000
        assert "reset" not in record

    def test_times_since_boot_become_times(self, server: Server) -> None:
        text = "job_stats:\n- job_id:          a.1\nsnapshot_time   : 400.5 secs.nsecs\n"
        server.write(text + "start_time      : 100.000000001 secs.nsecs\n")
        (record,) = server.records()
        assert record["snapshot_time"] == 1_700_000_400.5
        assert record["start_time"] == 1_700_000_100.0

    def test_resets_are_named(self, server: Server) -> None:
        server.write(SEED)
        server.records()
        server.write(SEED.replace("7754", "7753"))
        (record,) = server.records()
        assert record["reset"] == "decreased"

    def test_malformed_ids_are_series_of_their_own(self, tmp_path: Path) -> None:
        server = Server(tmp_path, **{"malformed-namespace": NAMESPACE})
        ids = ["wget", "11317854:", ":::r01c01.bullx", '"113\\x3A"']
        server.write(
            "job_stats:\n" + "".join(f"- job_id:          {i}\n  snapshot_time:   5\n" for i in ids)
        )
        records = server.records()
        assert [record["entry_id"] for record in records] == [
            "wget", "11317854:", ":::r01c01.bullx", "113:",
        ]  # fmt: skip
        assert all(record["malformed"] for record in records)
        assert len({record["time_series_id"] for record in records}) == 4

    def test_a_job_id_may_stand_alone(self, tmp_path: Path) -> None:
        server = Server(tmp_path, **{"malformed-namespace": NAMESPACE})
        server.write(SEED.replace("11317854:17627127:r01c01", "11317854"))
        (record,) = server.records()
        assert record["job_id"] == 11317854
        assert "malformed" not in record
        uuid = uuid5(UUID(NAMESPACE), "scratch-OST0001:11317854")
        assert record["time_series_id"] == str(uuid)  # as before, when this was half an id

    def test_an_operation_can_not_pose_as_a_field(self, server: Server) -> None:
        text = SEED + "".join(
            f"  {name}: {{ samples: 9, unit: reqs }}\n"
            for name in ("user_id", "target", "timestamp", "malformed", "new_one")
        )
        server.write(text)
        (record,) = server.records()
        assert record["user_id"] == 17627127
        assert record["target"] == "scratch-OST0001"
        assert "malformed" not in record
        assert record["new_one"] == 9

    def test_the_largest_counters_are_kept_in_range(self, server: Server) -> None:
        server.write(SEED.replace("sum: 31760384", f"sum: {10**20 - 1}"))
        (record,) = server.records()
        assert record["read_bytes"] == 2**64 - 1

    def test_batches_are_bounded(self, tmp_path: Path) -> None:
        server = Server(tmp_path, **{"batch-size": 2})
        text = "".join(f"- job_id:          a.{i}\n  snapshot_time:   5\n" for i in range(5))
        server.write("job_stats:\n" + text)
        arrays = encode(server.agent.sample(server.node), ["sonar"], server.node)
        assert [len(json.loads(message.body)) for message in arrays] == [2, 2, 1]


class TestSystemEntries:
    TEXT = """\
job_stats:
- job_id:          5:0:n1
  snapshot_time:   5
  write_bytes:     {{ samples: {a}, unit: bytes, min: 1, max: 1, sum: {a} }}
- job_id:          slurmstepd.1001
  snapshot_time:   5
  write_bytes:     {{ samples: {b}, unit: bytes, min: 1, max: 1, sum: {b} }}
- job_id:          5:1001:n1
  snapshot_time:   5
"""

    @pytest.mark.parametrize("treatment", ["keep", "aggregate", "leave-out"])
    def test_they_are_kept_or_added_up_or_left_out(self, tmp_path: Path, treatment: str) -> None:
        server = Server(tmp_path, **{"system-entries": treatment})
        server.write(self.TEXT.format(a=10, b=20))
        ids = [record["entry_id"] for record in server.records()]
        assert (
            ids
            == {
                "keep": ["5:0:n1", "slurmstepd.1001", "5:1001:n1"],
                "aggregate": ["5:1001:n1", "_system_"],
                "leave-out": ["5:1001:n1"],
            }[treatment]
        )
        points = server.points(server.new_agent("line"))
        assert points["lustre_jobstats_entries type=node"] == "3i"
        assert points["lustre_jobstats_system type=node"] == "2i"

    def test_the_sum_goes_on_when_entries_do_not(self, tmp_path: Path) -> None:
        state = str(tmp_path / "state")
        server = Server(tmp_path / "node", **{"system-entries": "aggregate", "state-file": state})
        sums: list[int] = []
        for a, b in ((10, 20), (11, 3), (11, 4)):
            server.write(self.TEXT.format(a=a, b=b))
            sums.append(server.records()[-1]["write_bytes"])
        server.agent = server.new_agent()
        server.write(self.TEXT.format(a=12, b=4))
        sums.append(server.records()[-1]["write_bytes"])
        assert sums == [30, 34, 35, 36]


class TestPoints:
    def test_counters_of_node_target_and_job(self, server: Server) -> None:
        agent = server.new_agent("line")
        server.write(SEED)
        server.write(SEED.replace("r01c01", "r01c02"), "obdfilter/scratch-OST0002")
        points = server.points(agent)
        job = "stype=job,stype-id=11317854"
        target = "stype=filesystem,stype-id=scratch-OST0002"
        assert points["lustre_read_bytes type=node"] == "63520768i"
        assert points[f"lustre_read_bytes {target}"] == "31760384i"
        assert points[f"lustre_read_bytes {job}"] == "63520768i"
        assert points[f"lustre_write_requests {job}"] == "8568i"
        assert points["lustre_jobstats_entries type=node"] == "2i"
        names = [name for name in points if name.startswith("lustre_read_bytes")]
        assert names[-1] == "lustre_read_bytes type=node"  # for a store that knows no stype
        assert not any("rate" in name or "_bw" in name for name in points)

    def test_a_jobs_counter_goes_on_while_its_clients_come_and_go(self, server: Server) -> None:
        agent = server.new_agent("line")
        name = "lustre_read_bytes stype=job,stype-id=11317854"
        values: list[str] = []
        server.write(SEED)
        values.append(server.points(agent)[name])
        server.write(SEED.replace("31760384", "31760394"))
        values.append(server.points(agent)[name])
        server.write(SEED.replace("31760384", "5").replace("7754", "1").replace("r01c01", "r9"))
        values.append(server.points(agent)[name])
        assert values == ["31760384i", "31760394i", "31760399i"]
        server.write("job_stats:\n")
        assert name not in server.points(agent)

    def test_it_does_not_fall_when_its_last_entry_was_cleaned_up(self, server: Server) -> None:
        agent = server.new_agent("line")
        name = "lustre_read_bytes stype=job,stype-id=11317854"
        server.write(SEED)
        assert server.points(agent)[name] == "31760384i"
        server.write("job_stats:\n")
        server.points(agent)
        server.write(SEED.replace("31760384", "5").replace("669010520", "700000200"))
        assert server.points(agent)[name] == "31760389i"

    @pytest.mark.parametrize("meanwhile", [SEED, "job_stats:\n"])
    def test_it_goes_on_after_a_restart(self, tmp_path: Path, meanwhile: str) -> None:
        server = Server(tmp_path / "node", **{"state-file": str(tmp_path / "state")})
        names = ["lustre_read_bytes stype=job,stype-id=11317854", "lustre_read_bytes type=node"]
        agent = server.new_agent("line")
        server.write(SEED)
        server.points(agent)
        server.write(meanwhile)
        server.points(agent)
        agent.save_state()
        server.write(SEED.replace("31760384", "31760389").replace("669010520", "700009000"))
        points = server.points(server.new_agent("line"))
        grown = 5 if meanwhile == SEED else 31760389
        assert [points[name] for name in names] == [f"{31760384 + grown}i"] * 2

    def test_totals_that_are_kept_are_bounded(self, tmp_path: Path) -> None:
        server = Server(
            tmp_path / "node", **{"state-file": str(tmp_path / "state"), "max-jobs": 10}
        )
        agent = server.new_agent("line")
        for job in range(100, 150):
            server.write(SEED.replace("11317854", str(job)))
            server.points(agent)
        agent.save_state()
        counters = JobTotals(10, Series(str(tmp_path / "state"), 10, 600.0).totals)
        kept = [one.stype_id for one in counters.kept(0.0) if one.stype == "job"]
        assert kept == [str(job) for job in range(142, 150)]

    def test_a_total_is_kept_for_a_week(self, server: Server) -> None:
        agent = server.new_agent("line")
        server.write(SEED)
        server.points(agent)
        server.write("job_stats:\n")
        server.points(agent)
        server.node.still.sleep(7 * 86400)
        server.points(agent)
        server.write(SEED.replace("31760384", "5").replace("669010520", "700600000"))
        points = server.points(agent)
        assert points["lustre_read_bytes stype=job,stype-id=11317854"] == "5i"

    def test_rates_are_never_alone(self, tmp_path: Path) -> None:
        server = Server(tmp_path, rates=True)
        agent = server.new_agent("line")
        server.write(SEED)
        first = server.points(agent)
        server.write(SEED.replace("31760384", "151760384").replace("4284", "4524"))
        points = server.points(agent)
        assert "lustre_read_bw type=node" not in first
        assert points["lustre_read_bw type=node"] == "1000000.0"
        assert points["lustre_write_requests_rate stype=job,stype-id=11317854"] == "2.0"
        assert points["lustre_read_bytes type=node"] == "151760384i"

    def test_a_target_that_is_no_tag_counts_for_node_and_job(self, server: Server) -> None:
        server.write(SEED, "obdfilter/a,b-OST0000")
        points = server.points(server.new_agent("line"))
        scopes = [name for name in points if name.startswith("lustre_read_bytes ")]
        assert [scope.split()[1] for scope in scopes] == [
            "stype=job,stype-id=11317854",
            "type=node",
        ]

    def test_a_step_of_the_clock_changes_no_rate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = Server(tmp_path, rates=True)
        agent = server.new_agent("line")
        server.write(SEED)
        server.points(agent)
        server.write(SEED.replace("31760384", "151760384"))
        clock = server.node.still
        monkeypatch.setattr(clock, "time", lambda: 1_699_900_000.0 + clock.passed)
        assert server.points(agent)["lustre_read_bw type=node"] == "1000000.0"

    @pytest.mark.parametrize("job", ["a,b", "a=b", 'a"b', "a\\\\x0ab", "é", "x" * 31])
    def test_a_jobs_name_breaks_no_line(self, server: Server, job: str) -> None:
        agent = server.new_agent("line")
        server.write(SEED.replace("11317854", job))
        points = server.points(agent)
        assert points["lustre_read_bytes type=node"] == "31760384i"
        jobs = [name for name in points if "stype=job" in name]
        assert bool(jobs) == (job == "x" * 31)

    def test_both_at_once(self, server: Server) -> None:
        server.write(SEED)
        both = LustreAgent(LustreSettings(), frozenset({"sonar", "line"}))
        messages = encode(both.sample(server.node), ["sonar", "line"], server.node)
        assert [(message.kind, message.format) for message in messages] == [
            ("lustre", "sonar"), ("metrics", "line"),
        ]  # fmt: skip


class TestSources:
    def test_without_lustre_it_says_so(self, server: Server) -> None:
        with pytest.raises(NotHereError, match="no Lustre server here"):
            server.records()

    def test_lctl_is_asked_where_there_are_no_files(self, tmp_path: Path) -> None:
        target = SimulatedTarget("fs-OST0000", "obdfilter")
        target.do("5:1001:n1", "write_bytes", 3, 4096, now=5.0)
        (tmp_path / "text").write_bytes(target.parameter("2.15.2", 6.0))
        lctl = tmp_path / "lctl"
        lctl.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            '"list_param obdfilter.*.job_stats") echo obdfilter.fs-OST0000.job_stats;;\n'
            f'"get_param obdfilter.fs-OST0000.job_stats") cat {tmp_path}/text;;\n'
            '*) echo "error: list_param: mdt/*/job_stats: No such file or directory" >&2; exit 2\n'
            "esac\n"
        )
        lctl.chmod(0o755)
        server = Server(tmp_path / "node", lctl=str(lctl))
        (record,) = server.records()
        assert (record["target"], record["write_bytes"]) == ("fs-OST0000", 3 * 4096)
        # It was a complete observation: what is new now has begun since.
        target.do("6:1001:n1", "sync", 1, now=100.0)
        (tmp_path / "text").write_bytes(target.parameter("2.15.2", 100.0))
        assert [r["snapshot_time"] is None for r in server.records()] == [False, True, False]

    @pytest.mark.slow
    @pytest.mark.parametrize("garbage", ["yes 'no job_stats'", "cat /dev/zero"])
    def test_text_that_is_no_job_stats_is_no_reading(self, tmp_path: Path, garbage: str) -> None:
        lctl = tmp_path / "lctl"
        lctl.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            '"list_param obdfilter.*.job_stats") echo obdfilter.fs-OST0000.job_stats;;\n'
            f'"get_param "*) {garbage} | head -c 3000000;;\n'
            "*) exit 2\nesac\n"
        )
        lctl.chmod(0o755)
        command = [*CCAGENT, "lustre", "--once", "--set", f"lctl={lctl}", "--set", "source=lctl"]
        result = subprocess.run(command, capture_output=True, check=False)
        assert result.returncode == 1
        assert b"fs-OST0000: the text has no entry of job_stats" in result.stderr

    @pytest.mark.slow
    def test_a_target_that_hangs_costs_no_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server(tmp_path, **{"target-time-limit": "1s"})
        server.write(SEED, "obdfilter/a-OST0000")
        path = server.write(SEED, "obdfilter/b-OST0000")
        server.write(SEED, "obdfilter/c-OST0000")
        assert len(server.records()) == 3
        path.unlink()
        os.mkfifo(path)
        writer = os.open(path, os.O_RDWR)
        before = time.monotonic()
        assert [r["target"] for r in server.records()] == ["a-OST0000", "c-OST0000"]
        assert time.monotonic() - before < 3
        assert "b-OST0000/job_stats: not read within 1 s" in caplog.text
        os.close(writer)
        path.unlink()
        server.write(SEED, "obdfilter/b-OST0000")
        # Nothing was taken for gone.
        assert [(r["target"], "reset" in r) for r in server.records()] == [
            ("a-OST0000", False), ("b-OST0000", False), ("c-OST0000", False),
        ]  # fmt: skip
        deadline = time.monotonic() + 5
        while any(thread.name == "reader" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    @pytest.mark.slow
    def test_a_program_that_never_stops_printing_ends(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        lctl = tmp_path / "lctl"
        lctl.write_text(
            '#!/bin/sh\ncase "$*" in\n'
            '"list_param obdfilter.*.job_stats") echo obdfilter.fs-OST0000.job_stats;;\n'
            '"get_param "*) exec yes x;;\nesac\n'
        )
        lctl.chmod(0o755)
        server = Server(tmp_path / "node", lctl=str(lctl), **{"target-time-limit": "500ms"})
        before = time.process_time()
        assert server.records() == []
        assert time.process_time() - before < 5
        assert "not finished after 0.5 s" in caplog.text
        assert server.agent.is_blind

    @pytest.mark.slow
    def test_a_file_that_never_ends_costs_no_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server(tmp_path, **{"target-time-limit": "500ms"})
        server.write(SEED, "obdfilter/a-OST0000")
        path = server.write(SEED, "obdfilter/b-OST0000")
        path.unlink()
        os.mkfifo(path)
        with subprocess.Popen(["sh", "-c", 'exec yes x >"$1"', "-", path]) as writer:
            before = time.process_time()
            assert [record["target"] for record in server.records()] == ["a-OST0000"]
            assert time.process_time() - before < 5
            writer.kill()
        assert "b-OST0000/job_stats: not read within 0.5 s" in caplog.text

    def test_a_reading_that_nobody_wants_any_more_ends(self, tmp_path: Path) -> None:
        server = Server(tmp_path, **{"batch-size": 1})
        entry = SEED.partition("job_stats:\n")[2]
        server.write(SEED + entry.replace("r01", "r02") + entry.replace("r01", "r03"))
        sample = server.agent.sample(server.node)
        next(sample)
        sample.close()  # type: ignore[attr-defined]
        assert len(server.records()) == 3

    def test_a_text_that_is_no_jobstats_is_said(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.write(b"\x7fELF" + bytes(range(256)) * 20)
        assert server.records() == []
        assert "can't be parsed" in caplog.text
        assert caplog.text.isprintable() or "\x7f" not in caplog.text

    def test_times_since_another_machines_boot_are_left_out(self, tmp_path: Path) -> None:
        dump = tmp_path / "dump"
        text = "snapshot_time   : 400.5 secs.nsecs\nstart_time      : 100.000000001 secs.nsecs"
        dump.write_text(SEED.replace("  snapshot_time:   1669010520", text))
        agent = LustreAgent(LustreSettings(input=str(dump)), frozenset({"sonar"}))
        server = Server(tmp_path / "node")
        server.node.root = "/"
        (record,) = server.records(agent)
        assert record["read"] == 7754
        assert "snapshot_time" not in record
        assert "start_time" not in record

    def test_a_cut_dump_is_no_complete_reading(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        dump = tmp_path / "dump"
        other = SEED.partition("job_stats:\n")[2].replace("r01", "r02")
        agent = LustreAgent(LustreSettings(input=str(dump)), frozenset({"sonar"}))
        server = Server(tmp_path / "node")
        server.node.root = "/"
        dump.write_text(SEED + other)
        assert len(server.records(agent)) == 2
        dump.write_text((SEED + other)[:-90])
        assert [record["nodename"] for record in server.records(agent)] == ["r01c01"]
        assert "breaks off in this entry; entry skipped: 11317854:17627127:r02c01" in caplog.text
        dump.write_text(SEED + other.replace("7754", "7755"))
        assert [(r["nodename"], "reset" in r) for r in server.records(agent)] == [
            ("r01c01", False), ("r02c01", False),
        ]  # fmt: skip

    @pytest.mark.parametrize("content", ["", "memused=1\n", "what is this\n"])
    def test_a_dump_without_jobstats_is_an_error(
        self, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        dump = tmp_path / "dump"
        dump.write_text(content)
        agent = LustreAgent(LustreSettings(input=str(dump)), frozenset({"sonar"}))
        agent.is_only_sample = True
        server = Server(tmp_path / "node")
        server.node.root = "/"
        assert server.records(agent) == []
        assert agent.is_blind
        assert "dump: has no job_stats" in caplog.text

    def test_statistics_that_are_not_there_are_an_error_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server(tmp_path, jobstats=False, statistics=["llite"])
        agent = server.new_agent("line")
        assert list(agent.sample(server.node)) == []
        assert "no statistics" not in caplog.text
        agent.is_only_sample = True
        list(agent.sample(server.node))
        assert agent.is_blind
        assert "no statistics of Lustre on this node" in caplog.text

    def test_a_server_without_targets_is_an_error_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        lctl = tmp_path / "lctl"
        lctl.write_text("#!/bin/sh\n")
        lctl.chmod(0o755)
        server = Server(tmp_path / "node", lctl=str(lctl))
        assert server.records() == []
        assert not caplog.text  # the daemon waits for targets to come
        server.agent.is_only_sample = True
        server.records()
        assert server.agent.is_blind
        assert "no targets with job_stats on this server" in caplog.text

    def test_targets_that_all_fail_are_an_error(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        server.write(SEED).unlink()
        (server.node.path / "proc/fs/lustre/obdfilter/scratch-OST0001/job_stats").mkdir()
        assert server.records() == []
        assert server.agent.is_blind
        assert "job_stats: Is a directory" in caplog.text
        server.write(SEED, "obdfilter/scratch-OST0002")
        assert len(server.records()) == 1
        assert not server.agent.is_blind

    def test_a_dump_may_hold_everything(self, tmp_path: Path) -> None:
        dump = tmp_path / "dump"
        dump.write_text("health_check=healthy\n" + SEED + "memused=1\n")
        agent = LustreAgent(LustreSettings(input=str(dump)), frozenset({"sonar"}))
        server = Server(tmp_path / "node")
        server.node.root = "/"
        (record,) = server.records(agent)
        assert record["target"] == "scratch-OST0001"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"formats": ["%z"]}, "%z is none of"),
        ({"namespaces": {"%e": NAMESPACE}}, "'%e' is none of the formats"),
        ({"namespaces": {"%e.%u": "x"}}, "namespaces: 'x' is no UUID"),
        ({"malformed-namespace": "x"}, "malformed-namespace: 'x' is no UUID"),
        ({"state-file": "lustre.state"}, "state-file: an absolute path is needed"),
        ({"system-entries": "drop"}, "system-entries"),
    ],
)
def test_a_bad_configuration_is_said(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        convert(settings, LustreSettings, "agents.lustre", place="x.toml")
