"""What jobs of a real Slurm read, write, send and receive, by `ccagent jobio show`: to the byte.

Slurm, with control groups of version 2 and then 1, runs in an emulated machine with Debian's
kernel: emulated_slurm.py. That takes minutes: HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.debian_machine import download_kernel, run_in_machine
from tests.support.effort import IS_NIGHTLY
from tests.support.slurm_io_programs import (
    DATAGRAM,
    DATAGRAMS,
    DD_PROGRAMS,
    FIO_PROGRAMS,
    IDLE,
    OVERLAY_PROGRAMS,
    SCRIPT_PROGRAMS,
    STREAM_BYTES,
    STREAMS,
)

pytestmark = pytest.mark.skipif(not IS_NIGHTLY, reason="takes minutes: HYPOTHESIS_PROFILE=nightly")

NAMES = ("job", "point", "type", "source", "since", "magic")
OF_OVERLAY = {"stats", "fsyncs"}
"""Operations that overlay does by itself, beside those of the program."""

LARGEST_MESSAGES = 10_000
"""Bytes that Slurm's own processes of a job exchange with its daemons, at most."""

_FAILURES: list[Exception] = []
"""Why the machine could not be had: tests that are tried again do not start another one."""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all jobs did and what was shown of them."""
    if _FAILURES:
        raise _FAILURES[0]
    directory = tmp_path_factory.mktemp("slurm-kernel")
    try:
        output = run_in_machine(
            download_kernel(directory), directory, "tests.support.slurm_io_scenarios",
            time_limit=3600,
        )  # fmt: skip
        (line,) = [line for line in output.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads(line)
    except Exception as error:
        _FAILURES.append(error)
        raise
    return found


def section(results: dict[str, Any], version: str, name: str) -> dict[str, Any]:
    """Return what the programs of an array or of steps have told, by name."""
    found = results[version]
    assert "error" not in found, found["error"]
    section: dict[str, Any] = found[name]
    for told in section["programs"].values():
        assert "error" not in told, told["error"]
    return section


def shown_mount(results: dict[str, Any], job: int, kind: str) -> dict[str, int]:
    """Return the counters of a job on a file system that are not 0."""
    point = results["points"][kind]
    for mount in results["shown"]["mounts"]:
        if (mount["job"], mount["point"]) == (job, point):
            return {name: value for name, value in mount.items() if value and name not in NAMES}
    return {}


def shown_traffic(results: dict[str, Any], job: int) -> dict[str, dict[str, int]]:
    return {
        f"{each['protocol']}{'_loopback' if each['loopback'] else ''}": each
        for each in results["shown"]["network"]
        if each["job"] == job
    }


def test_nothing_is_left_out_or_lost(results: dict[str, Any]) -> None:
    assert results["left_out"] == {}
    assert results["shown"]["lost"] == 0
    assert set(results["points"]) == {"ext4", "tmpfs", "overlay", "fuse", "nfs"}


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_tasks_of_an_array_are_jobs_of_their_own(results: dict[str, Any], version: str) -> None:
    array = section(results, version, "array")
    jobs = {int(told["job"]) for told in array["programs"].values()}
    assert len(jobs) == len(array["programs"])
    assert array["array"] in jobs
    assert jobs <= {mount["job"] for mount in results["shown"]["mounts"]}


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        (program.name, kind)
        for program in (*SCRIPT_PROGRAMS, *OVERLAY_PROGRAMS, *DD_PROGRAMS)
        for kind in program.kinds
        if program.name != "mmap"
    ],
)
def test_a_task_is_counted_to_the_byte(results: dict[str, Any], program: str, kind: str) -> None:
    told = section(results, "v2", "array")["programs"][program]
    own = OF_OVERLAY if kind == "overlay" else set[str]()
    counted = shown_mount(results, int(told["job"]), kind)
    expected = told["expected"][kind]
    assert {name: value for name, value in counted.items() if name not in own} == {
        name: value for name, value in expected.items() if name not in own
    }


@pytest.mark.parametrize("kind", ["ext4", "nfs", "fuse"])
def test_mapped_files_have_faults_alone(results: dict[str, Any], kind: str) -> None:
    told = section(results, "v2", "array")["programs"]["mmap"]
    counted = shown_mount(results, int(told["job"]), kind)
    assert counted.pop("major_faults") >= 1
    assert counted == told["expected"][kind]


@pytest.mark.parametrize("program", [program.name for program in FIO_PROGRAMS])
def test_asynchronous_requests_have_their_results(results: dict[str, Any], program: str) -> None:
    told = section(results, "v2", "array")["programs"][program]
    counted, own = shown_mount(results, int(told["job"]), "ext4"), told["expected"]["ext4"]
    for kind in ("read", "write"):
        assert counted[f"async_{kind}s"] == own[f"{kind}_calls"]
        assert counted[f"async_{kind}_bytes"] == own[f"{kind}_size"]
        assert f"{kind}_bytes" not in counted


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_the_steps_of_a_job_are_one(results: dict[str, Any], version: str) -> None:
    steps = section(results, version, "steps")
    told = steps["programs"].values()
    assert {int(each["job"]) for each in told} == {steps["submitted"]}
    for kind in ("ext4", "tmpfs", "nfs", "fuse"):
        expected: dict[str, int] = {}
        for each in told:
            for name, value in each["expected"][kind].items():
                expected[name] = expected.get(name, 0) + value
        assert shown_mount(results, steps["submitted"], kind) == expected


@pytest.mark.parametrize(
    ("program", "kind"),
    [("read_write", "ext4"), ("read_write", "nfs"), ("copies", "tmpfs"), ("dd direct", "ext4")],
)
def test_jobs_of_the_first_version(results: dict[str, Any], program: str, kind: str) -> None:
    told = section(results, "v1", "array")["programs"][program]
    counted = shown_mount(results, int(told["job"]), kind)
    expected = told["expected"][kind]
    assert counted == expected


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_a_load_over_a_real_interface(results: dict[str, Any], version: str) -> None:
    told = section(results, version, "network")["programs"]["network"]
    traffic = shown_traffic(results, int(told["job"]))
    expected = told["expected"]["tmpfs"]
    for kind in ("tcp", "udp"):
        counted = {
            f"{kind}_{name}": traffic[kind][name]
            for name in ("sends", "sent_bytes", "receives", "received_bytes")
        }
        assert counted == {name: expected[name] for name in counted}
        # The other end has got each byte.
        assert results[version]["far"][kind] == traffic[kind]["sent_bytes"]
    assert traffic["tcp"]["sent_bytes"] == traffic["tcp"]["received_bytes"]
    assert traffic["tcp"]["sent_bytes"] == STREAMS * STREAM_BYTES
    assert traffic["udp"]["sent_bytes"] == DATAGRAMS * DATAGRAM


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_loopback_is_apart(results: dict[str, Any], version: str) -> None:
    told = section(results, version, "network")["programs"]["network"]
    traffic = shown_traffic(results, int(told["job"]))
    expected = told["expected"]["tmpfs"]
    for name in ("sent_bytes", "received_bytes"):
        assert traffic["udp_loopback"][name] == expected[f"udp_loopback_{name}"]
        # slurmstepd is in the control group of the job, and talks to daemons of this machine.
        more = traffic["tcp_loopback"][name] - expected[f"tcp_loopback_{name}"]
        assert 0 <= more <= LARGEST_MESSAGES


@pytest.mark.parametrize("version", ["v2", "v1"])
def test_slurm_s_own_messages_are_of_the_job(results: dict[str, Any], version: str) -> None:
    """A job that does nothing has nothing but these."""
    told = section(results, version, "array")["programs"][IDLE.name]
    job = int(told["job"])
    assert not any(shown_mount(results, job, kind) for kind in results["points"])
    traffic = shown_traffic(results, job)
    assert set(traffic) <= {"tcp_loopback"}
    assert all(each["sent_bytes"] <= LARGEST_MESSAGES for each in traffic.values())
