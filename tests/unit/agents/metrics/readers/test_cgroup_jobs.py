"""metrics, jobs: what control groups of both versions tell of Slurm's jobs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.metrics.readers.base import Count, Scope
from ccagent.agents.metrics.readers.cgroup_jobs import (
    CgroupJobsReader,
    CgroupJobsSettings,
    ShareScope,
)
from ccagent.errors import NotHereError, UnparsableError
from ccagent.machine.cgroup.files import parse_amount, parse_fields, parse_io, parse_limit
from ccagent.machine.counters import Rates
from ccagent.machine.node import Node
from ccagent.records.envelopes import LARGEST_UINT
from tests.support.tree import TreeNode

CGROUP = "sys/fs/cgroup"
SCOPE = f"{CGROUP}/system.slice/slurmstepd.scope"
MB = 1 << 20

CPU_STAT = (
    "usage_usec 2000000\nuser_usec 1500000\nsystem_usec 500000\nnice_usec 0\n"
    "core_sched.force_idle_usec 0\nnr_periods 10\nnr_throttled 2\nthrottled_usec 750000\n"
    "nr_bursts 0\nburst_usec 0\n"
)
V2 = {
    "memory.current": f"{100 * MB}\n",
    "memory.peak": f"{150 * MB}\n",
    "memory.max": f"{200 * MB}\n",
    "memory.stat": (
        f"anon {20 * MB}\nfile {70 * MB}\nkernel 100000\nshmem {10 * MB}\n"
        f"file_mapped {15 * MB}\nanon_thp 0\ninactive_anon {19 * MB}\nactive_file 0\n"
        f"inactive_file {70 * MB}\nunevictable 0\nslab 4711\n"
    ),
    "memory.events": "low 0\nhigh 0\nmax 31\noom 3\noom_kill 2\noom_group_kill 0\n",
    "cpu.stat": CPU_STAT,
    "io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
    "cpu.pressure": (
        "some avg10=1.00 avg60=0.50 avg300=0.10 total=1000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=10\n"
    ),
    "memory.pressure": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=20\n"
    ),
    "io.pressure": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=30\n"
    ),
}
ALL_OF_V2: dict[str, float] = {
    "job_mem_used": 100 * MB,
    "job_mem_peak": 150 * MB,
    "job_mem_limit": 200 * MB,
    "job_mem_rss": 30 * MB,
    "job_mem_anon": 20 * MB,
    "job_mem_shmem": 10 * MB,
    "job_mem_file": 70 * MB,
    "job_oom_kills": 2,
    "job_cpu_util": 2_000_000_000,
    "job_cpu_throttled": 750_000_000,
    "job_io_read": 4096,
    "job_io_write": 8192,
    "job_pressure_cpu": 1000,
    "job_pressure_memory": 2000,
    "job_pressure_io": 3000,
}
V1 = {
    "memory": {
        "memory.usage_in_bytes": f"{100 * MB}\n",
        "memory.max_usage_in_bytes": f"{150 * MB}\n",
        "memory.limit_in_bytes": f"{200 * MB}\n",
        # Without `total_` it is what no step has.
        "memory.stat": (
            f"cache 1\nrss 2\nshmem 3\nmapped_file 4\ntotal_cache {70 * MB}\n"
            f"total_rss {20 * MB}\ntotal_shmem {10 * MB}\ntotal_mapped_file {15 * MB}\n"
        ),
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
    },
    "cpuacct": {"cpuacct.usage": "2000000000\n"},
    "cpu": {"cpu.stat": "nr_periods 10\nnr_throttled 2\nthrottled_time 750000000\n"},
    "blkio": {
        "blkio.throttle.io_service_bytes_recursive": (
            "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Async 0\n8:0 Discard 0\n"
            "8:0 Total 12288\nTotal 12288\n"
        )
    },
}


class Machine:
    """A tree with control groups; a reader, and the rates that the agent makes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.node = Node(root=str(root), hostname="n1", cluster="c1")
        self.reader = CgroupJobsReader()
        self._rates: Rates[Scope] = Rates()
        self._moment = 0.0
        (root / CGROUP).mkdir(parents=True)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def v2(self, job: str, *, scope: str = SCOPE, **changed: str) -> str:
        """Add a job; changed: files by name, with `_` for `.`."""
        for file, text in (
            V2 | {name.replace("_", "."): text for name, text in changed.items()}
        ).items():
            self.write(f"{scope}/{job}/{file}", text)
        self.write(f"{scope}/{job}/step_0/memory.current", "1\n")
        return f"{scope}/{job}"

    def v1(self, job: int, *, slurm: str = "slurm", user: int = 5002) -> None:
        for controller, files in V1.items():
            for file, text in files.items():
                self.write(f"{CGROUP}/{controller}/{slurm}/uid_{user}/job_{job}/{file}", text)

    def remove(self, path: str) -> None:
        (self.root / path).rename(self.root / f"removed{len([*self.root.glob('removed*')])}")

    def read(self) -> dict[int, dict[str, float]]:
        """By job and metric."""
        jobs: dict[int, dict[str, float]] = {}
        for one in self.reader.read(self.node):
            assert one.scope == Scope("node", "", "job", one.scope.stype_id)
            assert one.metric in CgroupJobsReader.of_jobs
            values = jobs.setdefault(int(one.scope.stype_id), {})
            assert one.metric not in values
            values[one.metric] = one.value
        return jobs

    def rates(self, job: int) -> dict[str, float]:
        """What the counters make ten seconds after the reading before."""
        self._moment += 10
        counts = [one for one in self.reader.read(self.node) if isinstance(one, Count)]
        found = self._rates.of(counts, CgroupJobsReader.of_jobs, self._moment)
        return {
            metric: round(rate, 9) for metric, rate, scope in found if scope.stype_id == str(job)
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestParsers:
    @pytest.mark.parametrize(
        "text", [b"", b"max", b"-1", b"1.5", b"1 2", b"18446744073709551616", b"\xff"]
    )
    def test_what_is_no_amount(self, text: bytes) -> None:
        with pytest.raises(UnparsableError):
            parse_amount(text)

    @pytest.mark.parametrize(
        ("text", "limit"),
        [
            (b"209715200\n", 200 * MB),
            (b"0\n", 0),
            (b"max\n", None),
            (b"9223372036854771712\n", None),  # pages of 4 KiB
            (b"9223372036854710272\n", None),  # pages of 64 KiB
            (b"18446744073709551615\n", None),
        ],
    )
    def test_no_limit_has_several_forms(self, text: bytes, limit: int | None) -> None:
        assert parse_limit(text) == limit

    def test_fields_are_found_by_name(self) -> None:
        wanted = {b"usage_usec": ("time", 1000), b"nr": ("missing", 1)}
        assert parse_fields(CPU_STAT.encode(), wanted) == {"time": 2_000_000_000}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"", {}),
            (
                b"259:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=9 dios=9\n8:16 rbytes=3 wbytes=4\n",
                {"259:0": (1, 2, 1, 1), "8:16": (3, 4)},
            ),
            (b"7:1 7:0 8:0 rbytes=5 wbytes=6 rios=1\n", {"8:0": (5, 6)}),
            (b"8:0 \n8:16 rbytes=5 wbytes=6\n", {"8:16": (5, 6)}),
            (b"(unknown) rbytes=5 wbytes=6\n8:0 rbytes=1 wbytes=2\n", {"8:0": (1, 2)}),
            (b"8:0 rbytes=5 wbytes=6 cost.usage=7 cost.wait=8\n", {"8:0": (5, 6)}),
            (b"8:0 Read 5\n8:0 Write 6\n8:0 Total 11\nTotal 11\n", {"8:0": (5, 6)}),
            (b"Total 0\n", {}),
        ],
    )
    def test_io_is_told_by_device(self, text: bytes, expected: dict[str, tuple[int, ...]]) -> None:
        assert parse_io(text) == expected

    @given(st.binary() | st.text("0123456789 max\n").map(str.encode))
    def test_amounts_and_limits_are_understood_or_unparsable(self, content: bytes) -> None:
        for parse in (parse_amount, parse_limit):
            with contextlib.suppress(UnparsableError):
                value = parse(content)
                assert value is None or 0 <= value <= LARGEST_UINT

    @given(st.binary() | st.text("oom_kill 0123456789\n").map(str.encode))
    def test_fields_are_understood_or_unparsable(self, content: bytes) -> None:
        with contextlib.suppress(UnparsableError):
            found = parse_fields(content, {b"oom_kill": ("kills", 1)})
            assert all(0 <= value <= LARGEST_UINT for value in found.values())

    @given(
        st.binary()
        | st.lists(
            st.sampled_from(["8:0", "7:1", "rbytes=", "wbytes=", "Read ", "Write ", " ", "\n"])
            | st.integers(0, 2**70).map(str)
        ).map(lambda parts: "".join(parts).encode())
    )
    def test_io_is_understood_or_unparsable(self, content: bytes) -> None:
        with contextlib.suppress(UnparsableError):
            for pair in parse_io(content).values():
                assert all(0 <= value <= LARGEST_UINT for value in pair)


class TestVersion2:
    def test_a_job_tells_all_of_it(self, machine: Machine) -> None:
        machine.v2("job_13")
        assert machine.read() == {13: ALL_OF_V2}
        assert machine.reader.errors == []
        assert ALL_OF_V2.keys() == CgroupJobsReader.of_jobs.keys()

    def test_counters_become_rates(self, machine: Machine) -> None:
        machine.v2("job_13")
        assert machine.rates(13) == {}
        machine.v2(
            "job_13",
            cpu_stat="usage_usec 42000000\nthrottled_usec 5750000\n",
            io_stat="8:0 rbytes=14096 wbytes=8192\n",
            cpu_pressure="some avg10=0.00 avg60=0.00 avg300=0.00 total=5001000\n",
        )
        assert machine.rates(13) == {
            "job_cpu_util": 400.0,
            "job_cpu_throttled": 50.0,
            "job_io_read": 1000.0,
            "job_io_write": 0.0,
            "job_pressure_cpu": 50.0,
            "job_pressure_memory": 0.0,
            "job_pressure_io": 0.0,
        }

    def test_the_first_interval_of_a_job_counts(self, machine: Machine) -> None:
        machine.v2("job_13")
        machine.rates(13)
        machine.v2("job_14", cpu_stat="usage_usec 5000000\nthrottled_usec 0\n")
        assert machine.rates(14)["job_cpu_util"] == 50.0
        machine.v2("job_14", cpu_stat="usage_usec 15000000\nthrottled_usec 0\n")
        assert machine.rates(14)["job_cpu_util"] == 100.0

    def test_what_jobs_did_before_the_first_reading_is_no_rate(self, machine: Machine) -> None:
        machine.v2("job_13", cpu_stat="usage_usec 900000000\n")
        assert machine.rates(13) == {}

    def test_a_job_that_could_not_be_listed_is_not_new(self, machine: Machine) -> None:
        machine.v2("job_13", cpu_stat="usage_usec 900000000\n")
        machine.rates(13)
        machine.remove(SCOPE)
        (machine.root / SCOPE).symlink_to(machine.root / SCOPE)  # listing it fails
        machine.rates(13)
        (machine.root / SCOPE).unlink()
        machine.v2("job_13", cpu_stat="usage_usec 900000000\n")
        assert machine.rates(13) == {}

    def test_what_the_kernel_lacks_is_left_out(self, machine: Machine) -> None:
        path = machine.v2("job_13", memory_max="max\n", cpu_stat="usage_usec 5\nuser_usec 5\n")
        for file in ("memory.peak", "memory.stat", "io.stat", "io.pressure", "memory.pressure"):
            (machine.root / path / file).unlink()
        assert machine.read() == {
            13: {"job_mem_used": 100 * MB, "job_oom_kills": 2, "job_cpu_util": 5000,
                 "job_pressure_cpu": 1000}
        }  # fmt: skip
        assert machine.reader.errors == []

    def test_what_one_of_several_slurmd_lacks_is_left_out(self, machine: Machine) -> None:
        machine.v2("job_13")
        other = machine.v2("job_13", scope=SCOPE.replace("slurm", "n2_slurm"))
        (machine.root / other / "cpu.stat").unlink()
        find_missing = {"job_cpu_util", "job_cpu_throttled"}
        assert ALL_OF_V2.keys() - machine.read()[13].keys() == find_missing

    def test_several_slurmd_add_up(self, machine: Machine) -> None:
        machine.v2("job_13", scope=SCOPE.replace("slurmstepd", "n1_slurmstepd"))
        machine.v2(
            "job_13",
            scope=SCOPE.replace("slurmstepd", "n2_slurmstepd"),
            cpu_pressure="some avg10=0.00 avg60=0.00 avg300=0.00 total=3000\n",
        )
        machine.v2("job_14", scope=SCOPE.replace("slurmstepd", "n2_slurmstepd"))
        doubled = {metric: 2 * value for metric, value in ALL_OF_V2.items()}
        pressure = {"job_pressure_cpu": 2000, "job_pressure_memory": 2000, "job_pressure_io": 3000}
        assert machine.read() == {13: doubled | pressure, 14: ALL_OF_V2}

    def test_one_of_several_without_limit_is_without(self, machine: Machine) -> None:
        machine.v2("job_13")
        machine.v2("job_13", scope=SCOPE.replace("slurm", "n2_slurm"), memory_max="max\n")
        assert "job_mem_limit" not in machine.read()[13]

    def test_one_of_several_that_ends_makes_no_leap(self, machine: Machine) -> None:
        other = SCOPE.replace("slurm", "n2_slurm")
        machine.v2("job_13")
        machine.v2("job_13", scope=other, cpu_stat="usage_usec 900000000\n")
        machine.rates(13)
        assert machine.rates(13)["job_cpu_util"] == 0.0
        machine.remove(f"{other}/job_13")
        assert machine.rates(13) == {}
        assert machine.read()[13]["job_mem_used"] == 100 * MB
        machine.rates(13)
        machine.v2("job_13", cpu_stat="usage_usec 12000000\n")
        assert machine.rates(13)["job_cpu_util"] == 100.0

    @pytest.mark.parametrize("layer", ["253:0", "9:127", "7:3"])
    def test_what_lies_on_other_devices_is_not_counted_twice(
        self, machine: Machine, layer: str
    ) -> None:
        if not layer.startswith("7:"):
            machine.write(f"sys/dev/block/{layer}/slaves/sda2", "")
        (machine.root / "sys/dev/block/8:0/slaves").mkdir(parents=True)
        lines = f"{layer} rbytes=4096 wbytes=8192\n8:0 rbytes=4096 wbytes=8192\n"
        machine.v2("job_13", io_stat=lines)
        assert machine.read() == {13: ALL_OF_V2}

    @pytest.mark.parametrize(
        "scope",
        [
            f"{CGROUP}/user.slice/user-5002.slice/user@5002.service/slurmstepd.scope/job_13",
            f"{CGROUP}/slurmstepd.scope/job_13",
            f"{SCOPE}/job_13.old",
            f"{SCOPE}/job_",
            f"{SCOPE}/xjob_13",
            f"{SCOPE}/job_13\n",
            f"{SCOPE}/job_٣",
            f"{SCOPE}x/job_13",
            f"{SCOPE}/system/job_13",
        ],
    )
    def test_no_other_place_is_a_job(self, machine: Machine, scope: str) -> None:
        machine.v2("job_1")
        directory, _, name = scope.rpartition("/")
        machine.v2(name, scope=directory)
        assert [*machine.read()] == [1]

    @pytest.mark.parametrize(
        ("file", "content", "lost"),
        [
            ("memory.current", "", {"job_mem_used"}),
            ("memory.max", "lots\n", {"job_mem_limit"}),
            (
                "memory.stat",
                "anon 99999999999999999999\n",
                {"job_mem_rss", "job_mem_anon", "job_mem_shmem", "job_mem_file"},
            ),
            (
                "cpu.stat",
                "usage_usec 99999999999999999999\n",
                {"job_cpu_util", "job_cpu_throttled"},
            ),
            (
                "io.stat",
                "8:0 rbytes=99999999999999999999 wbytes=1\n",
                {"job_io_read", "job_io_write"},
            ),
            ("io.pressure", "garbage\n", {"job_pressure_io"}),
        ],
    )
    def test_a_file_of_nonsense_costs_its_own_and_is_told_once(
        self, machine: Machine, file: str, content: str, lost: set[str]
    ) -> None:
        for job in (13, 14):
            machine.write(machine.v2(f"job_{job}") + f"/{file}", content)
        for values in machine.read().values():
            assert ALL_OF_V2.keys() - values.keys() == lost
        (error,) = machine.reader.errors
        assert error.startswith(f"/{SCOPE}/job_13/{file}: ")
        machine.v2("job_13")
        machine.v2("job_14")
        assert machine.read() == {13: ALL_OF_V2, 14: ALL_OF_V2}
        assert machine.reader.errors == []

    def test_jobs_that_end_vanish_silently(self, machine: Machine) -> None:
        path = machine.v2("job_13")
        machine.v2("job_14")
        machine.read()
        for file in V2:
            (machine.root / path / file).unlink()
        assert machine.read() == {14: ALL_OF_V2}
        machine.remove(path)
        machine.remove(f"{SCOPE}/job_14")
        assert machine.read() == {}
        assert machine.reader.errors == []


class TestVersion1:
    def test_controllers_make_up_a_job(self, machine: Machine) -> None:
        machine.v1(13)
        pressure = {metric for metric in ALL_OF_V2 if "pressure" in metric}
        without = {metric: value for metric, value in ALL_OF_V2.items() if metric not in pressure}
        assert machine.read() == {13: without | {"job_oom_kills": 0}}
        assert machine.reader.errors == []

    def test_a_controller_that_slurm_does_not_use_costs_its_own(self, machine: Machine) -> None:
        machine.v1(13)
        for controller in ("memory", "blkio", "cpu"):
            machine.remove(f"{CGROUP}/{controller}/slurm")
        assert machine.read() == {13: {"job_cpu_util": 2_000_000_000}}

    def test_several_slurmd_add_up(self, machine: Machine) -> None:
        machine.v1(13, slurm="slurm_n1")
        machine.v1(13, slurm="slurm_n2")
        machine.v1(77, slurm="slurm_n2", user=5003)
        found = machine.read()
        assert found[13]["job_mem_used"] == 200 * MB
        assert found[13]["job_cpu_util"] == 4_000_000_000
        assert found[77]["job_mem_used"] == 100 * MB

    def test_without_a_limit_there_is_none(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/memory/slurm/uid_5002/job_13"
        machine.write(f"{directory}/memory.limit_in_bytes", "9223372036854771712\n")
        assert "job_mem_limit" not in machine.read()[13]

    def test_old_kernels_tell_mapped_files_instead_of_shared_memory(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/memory/slurm/uid_5002/job_13"
        machine.write(
            f"{directory}/memory.stat",
            f"total_cache {70 * MB}\ntotal_rss {20 * MB}\ntotal_mapped_file {15 * MB}\n",
        )
        found = machine.read()[13]
        assert found["job_mem_rss"] == 35 * MB
        assert "job_mem_shmem" not in found

    def test_oom_kills_are_those_of_steps_and_tasks_also_ended_ones(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/memory/slurm/uid_5002/job_13"
        for part, kills in (("step_0", 1), ("step_0/task_3", 2), ("step_batch", 0),
                            ("step_batch/task_0", 4), ("own", 64), ("step_0/own", 64)):  # fmt: skip
            machine.write(f"{directory}/{part}/memory.oom_control", f"oom_kill {kills}\n")
        assert machine.read()[13]["job_oom_kills"] == 7
        machine.remove(f"{directory}/step_0")
        assert machine.read()[13]["job_oom_kills"] == 7
        machine.write(f"{directory}/step_batch/task_0/memory.oom_control", "oom_kill 5\n")
        assert machine.read()[13]["job_oom_kills"] == 8

    def test_a_job_that_is_requeued_begins_without_kills(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/memory/slurm/uid_5002/job_13"
        machine.write(f"{directory}/step_0/memory.oom_control", "oom_kill 3\n")
        assert machine.read()[13]["job_oom_kills"] == 3
        machine.remove(directory)
        machine.read()
        machine.v1(13)
        assert machine.read()[13]["job_oom_kills"] == 0

    def test_old_kernels_do_not_count_oom_kills(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/memory/slurm/uid_5002/job_13"
        machine.write(f"{directory}/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
        assert "job_oom_kills" not in machine.read()[13]

    def test_old_kernels_count_io_elsewhere(self, machine: Machine) -> None:
        machine.v1(13)
        directory = machine.root / CGROUP / "blkio/slurm/uid_5002/job_13"
        old = directory / "blkio.throttle.io_service_bytes_recursive"
        old.rename(directory / "blkio.io_service_bytes_recursive")
        assert machine.read()[13]["job_io_write"] == 8192

    def test_old_kernels_count_no_io_without_cfq(self, machine: Machine) -> None:
        machine.v1(13)
        directory = f"{CGROUP}/blkio/slurm/uid_5002/job_13"
        machine.remove(f"{directory}/blkio.throttle.io_service_bytes_recursive")
        machine.write(f"{directory}/blkio.io_service_bytes_recursive", "Total 0\n")
        assert "job_io_write" not in machine.read()[13]

    @pytest.mark.parametrize(
        "scope",
        ["slurmx/uid_5002/job_13", "slurm/job_13", "slurm/uid_x/job_13", "slurm/uid_5002/xjob_13",
         "user.slice/slurm/uid_5002/job_13", "slurm/uid_5002/job_1/job_13"],
    )  # fmt: skip
    def test_no_other_place_is_a_job(self, machine: Machine, scope: str) -> None:
        machine.v1(1)
        machine.write(f"{CGROUP}/memory/{scope}/memory.usage_in_bytes", "5\n")
        assert [*machine.read()] == [1]

    def test_where_it_has_the_jobs_the_other_version_has_none(self, machine: Machine) -> None:
        machine.v1(13)
        machine.v2("job_14")
        assert [*machine.read()] == [13]


def test_a_directory_that_may_not_be_listed_is_told() -> None:
    # Not below tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        machine = Machine(Path(directory))
        machine.v2("job_13")
        scope = machine.root / SCOPE
        scope.chmod(0)
        with unprivileged():
            assert machine.read() == {}
        assert machine.reader.errors == [f"/{SCOPE}: Permission denied"]
        scope.chmod(0o755)
        assert machine.read() == {13: ALL_OF_V2}
        assert machine.reader.errors == []


@contextlib.contextmanager
def unprivileged() -> Generator[None]:
    """Root may list everything, so be somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_without_slurm_it_is_not_here(machine: Machine) -> None:
    (machine.root / CGROUP / "memory/user.slice").mkdir(parents=True)
    (machine.root / CGROUP / "system.slice/sshd.service").mkdir(parents=True)
    with pytest.raises(NotHereError, match="Slurm has made no control groups"):
        machine.read()


def test_with_slurm_but_without_jobs_there_is_nothing(machine: Machine) -> None:
    (machine.root / SCOPE / "system").mkdir(parents=True)
    assert machine.read() == {}


class TestShares:
    """What cc-metric-store keeps of jobs: hwthreads or sockets that a job has for itself."""

    def make(self, root: Path, scope: ShareScope, sockets: dict[int, int]) -> Machine:
        machine = Machine(root)
        machine.reader = CgroupJobsReader(CgroupJobsSettings(scope=scope))
        machine.write("sys/devices/system/cpu/online", ",".join(map(str, sockets)) + "\n")
        for cpu, socket in sockets.items():
            topology = f"sys/devices/system/cpu/cpu{cpu}/topology"
            machine.write(f"{topology}/physical_package_id", f"{socket}\n")
        return machine

    def shares(self, machine: Machine, metric: str) -> dict[str, float]:
        return {
            one.scope.type + one.scope.type_id: one.value
            for one in machine.reader.read(machine.node)
            if one.metric == metric
        }

    def test_a_hwthread_has_its_part_of_the_job(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "hwthread", dict.fromkeys(range(4), 0))
        machine.v2("job_13", cpuset_cpus="0-1\n")
        assert self.shares(machine, "cgroup_mem_used") == {
            "hwthread0": 50 * MB, "hwthread1": 50 * MB, "hwthread2": 0, "hwthread3": 0,
        }  # fmt: skip

    def test_the_sum_over_hwthreads_is_what_the_job_uses(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "hwthread", dict.fromkeys(range(4), 0))
        machine.node = TreeNode(tmp_path)
        for usage, expected in ((0, {}), (5, {"hwthread0": 0, "hwthread1": 25, "hwthread2": 0,
                                              "hwthread3": 25})):  # fmt: skip
            machine.v2("job_13", cpuset_cpus="1,3\n", cpu_stat=f"usage_usec {usage}000000\n")
            assert self.shares(machine, "cgroup_cpu_util") == expected
            machine.node.still.sleep(10)

    def test_hwthreads_of_two_jobs_have_no_value(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "hwthread", dict.fromkeys(range(4), 0))
        machine.v2("job_13", cpuset_cpus="0-2\n")
        machine.v2("job_14", cpuset_cpus="2-3\n")
        assert self.shares(machine, "cgroup_mem_used").keys() == {
            "hwthread0", "hwthread1", "hwthread3",
        }  # fmt: skip

    def test_a_job_that_is_not_confined_has_no_shares(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "hwthread", dict.fromkeys(range(2), 0))
        machine.v2("job_13", cpuset_cpus="\n")
        assert self.shares(machine, "cgroup_mem_used") == {}

    def test_a_socket_has_its_part_of_the_job(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "socket", {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 2})
        machine.v2("job_13", cpuset_cpus="0-4\n")
        assert self.shares(machine, "cgroup_mem_used") == {
            "socket0": 80 * MB, "socket1": 20 * MB, "socket2": 0,
        }  # fmt: skip

    def test_version_1(self, tmp_path: Path) -> None:
        machine = self.make(tmp_path, "hwthread", dict.fromkeys(range(2), 0))
        machine.v1(13)
        machine.write(f"{CGROUP}/cpuset/slurm/uid_5002/job_13/cpuset.cpus", "0-1\n")
        assert self.shares(machine, "cgroup_mem_used") == {
            "hwthread0": 50 * MB, "hwthread1": 50 * MB,
        }  # fmt: skip

    def test_none_by_default(self, machine: Machine) -> None:
        machine.v2("job_13", cpuset_cpus="0-1\n")
        assert self.shares(machine, "cgroup_mem_used") == {}
