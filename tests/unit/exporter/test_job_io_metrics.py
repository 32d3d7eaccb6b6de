"""I/O of jobs by mount, under the names of ccagent and of CEEMS."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccagent.errors import NotHereError
from ccagent.exporter.job_io_metrics import CeemsIoCollector, JobIoCollector
from ccagent.exporter.sources import JobIoReading
from tests.support.job_io import MOUNTS, JobIoNode
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode


@pytest.fixture
def node(tmp_path: Path) -> JobIoNode:
    return JobIoNode(tmp_path)


def test_counters_of_jobs_by_mount_from_the_first_scrape(node: JobIoNode) -> None:
    node.count(7, "0:40", reads=20, read_bytes=1000, opens=3, stats=7, read_errors=1)
    node.count(7, "8:1", writes=10, write_bytes=500, async_write_bytes=200, async_writes=1)
    node.count(0, "8:1", write_bytes=999)
    found = collected(make(JobIoCollector), node)
    home = 'fstype="lustre",jobid="7",mountpoint="/home"'
    root = 'fstype="ext4",jobid="7",mountpoint="/"'
    assert found[f"ccagent_job_fs_read_bytes_total{{{home}}}"] == 1000
    assert found[f"ccagent_job_fs_metadata_total{{{home}}}"] == 10
    assert found[f"ccagent_job_fs_errors_total{{{home}}}"] == 1
    assert found[f"ccagent_job_fs_written_bytes_total{{{root}}}"] == 700
    assert not [name for name in found if 'jobid="0"' in name]


def test_the_names_of_ceems_count_its_calls_only(node: JobIoNode) -> None:
    node.count(7, "8:1", writes=10, write_bytes=500, async_write_bytes=200, creates=2)
    node.count(7, "0:40", creates=1)
    found = collected(make(CeemsIoCollector), node)
    unit = 'hostname="c1-1",manager="slurm"'
    written = f'ceems_ebpf_write_bytes_total{{{unit},mountpoint="/",uuid="7"}}'
    assert found[written] == 500
    assert found[f'ceems_ebpf_create_requests_total{{{unit},uuid="7"}}'] == 3


def test_mounts_of_one_place_are_one_series(node: JobIoNode) -> None:
    over = "39 37 0:42 / /home rw - lustre 10.0.0.2@o2ib:/new rw\n"
    node.write("self/mountinfo", f"{MOUNTS}{over}")
    node.count(7, "0:40", read_bytes=1000)
    node.count(7, "0:42", read_bytes=500)
    found = collected(make(JobIoCollector), node)
    home = 'fstype="lustre",jobid="7",mountpoint="/home"'
    assert found[f"ccagent_job_fs_read_bytes_total{{{home}}}"] == 1500


def test_a_job_with_many_mounts_has_few_series(node: JobIoNode) -> None:
    more = "".join(f"{n} 37 0:{n} / /m{n} rw - fuse x rw\n" for n in range(100, 200))
    node.write("self/mountinfo", f"{MOUNTS}{more}")
    for number in range(100, 200):
        node.count(7, f"0:{number}", write_bytes=10)
    found = collected(make(JobIoCollector), node)
    written = {k: v for k, v in found.items() if k.startswith("ccagent_job_fs_written")}
    assert len(written) == 33
    assert sum(written.values()) == 1000


def test_beyond_the_limit_jobs_have_no_series(node: JobIoNode) -> None:
    for job in (9, 7, 8):
        node.count(job, "8:1", write_bytes=10)
    assert {use.job for use in JobIoReading(2).read(node).mounts} == {7, 8}


def test_without_kernel_programs_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotHereError):
        collected(make(JobIoCollector), TreeNode(tmp_path))
