"""What jobs read, write, send and receive, on a machine with Debian's kernel: to the byte.

Each program ran in the control group of a job that had ended, and was removed, before the counters
were read. Kernels that refuse such programs are common where tests run: see debian_machine.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ccagent.machine.bpf.io_records import HOOKS, OF_OLD_KERNELS
from ccagent.views.top.reader import NOT_LOADED
from tests.support.debian_machine import download_kernel, run_in_machine
from tests.support.effort import IS_NIGHTLY
from tests.support.io_comparisons import differences
from tests.support.io_lacking import HIDDEN
from tests.support.io_programs import FILE_SYSTEMS, FIO, scripts_on
from tests.support.io_tables import KEPT, TALKERS
from tests.support.io_traffic import NETWORK
from tests.support.kernel_programs import SOURCES

pytestmark = pytest.mark.xdist_group("debian kernel")

at_night = pytest.mark.skipif(not IS_NIGHTLY, reason="takes long: HYPOTHESIS_PROFILE=nightly")

COMPARISONS = [(kind, script) for kind in FILE_SYSTEMS for script in scripts_on(kind)]

_FAILURES: list[Exception] = []
"""Why the machine could not be had: tests that are tried again do not start another one."""


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What all programs did and what was counted, by name; the machine is there for a while."""
    if _FAILURES:
        raise _FAILURES[0]
    try:
        return _run(tmp_path_factory.mktemp("debian-kernel"))
    except Exception as error:
        _FAILURES.append(error)
        raise


def _run(directory: Path) -> dict[str, Any]:
    """Run all programs on the machine."""
    built = directory / "built"
    built.mkdir()
    compiler = directory / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec clang -DKEPT={KEPT}000000000ULL "$@"\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CLANG": str(compiler)}
    shutil.copytree(SOURCES, directory / "sources")
    subprocess.run([directory / "sources/build", built], env=environment, check=True)
    output = run_in_machine(
        download_kernel(directory), directory, "tests.support.io_scenarios", str(built)
    )
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(line)
    return found


def result(results: dict[str, Any], name: str) -> Any:
    found = results[name]
    assert "error" not in found, found["error"]
    return found


def test_debian_s_kernel_has_all_functions(results: dict[str, Any]) -> None:
    assert results["left_out"] == {}
    assert results["complaint"] == ""
    assert results["lost"] == 0


@pytest.mark.parametrize(("kind", "script"), COMPARISONS)
def test_a_program_is_counted_to_the_byte(results: dict[str, Any], kind: str, script: str) -> None:
    name = f"{kind} {script}"
    assert differences(name, results[name]) == {}


@pytest.mark.parametrize("kind", [kind for kind, script in COMPARISONS if script == "mmap"])
def test_mapped_files_have_faults_and_no_bytes(results: dict[str, Any], kind: str) -> None:
    counted = result(results, f"{kind} mmap")["counted"]
    assert counted["major_faults"] >= 1
    assert set(counted) == {"opens", "stats", "major_faults"}


@pytest.mark.parametrize("name", ["dd", "dd direct", "dd direct read"])
def test_dd_with_and_without_the_page_cache(results: dict[str, Any], name: str) -> None:
    assert differences(name, results[name]) == {}


@pytest.mark.parametrize("name", FIO)
def test_asynchronous_requests_are_counted_with_their_results(
    results: dict[str, Any], name: str
) -> None:
    assert differences(f"fio {name}", results[f"fio {name}"]) == {}


@pytest.mark.parametrize("name", NETWORK)
def test_payload_is_counted_to_the_byte(results: dict[str, Any], name: str) -> None:
    assert differences(f"network {name}", results[f"network {name}"]) == {}


@at_night
def test_a_user_of_many_jobs_costs_others_no_traffic(results: dict[str, Any]) -> None:
    found = result(results, "many talkers")
    assert found["sent"] == [[number + 1] * 4 for number in range(TALKERS)]
    assert found["lost"] == 0
    assert differences("network udp", found["other"]) == {}


def test_jobs_of_the_first_version_of_control_groups(results: dict[str, Any]) -> None:
    found = result(results, "v1")
    assert found["counted"] == found["expected"]


def test_a_user_of_the_group_reads_often_and_others_never(
    results: dict[str, Any],
) -> None:
    found = result(results, "unprivileged")
    assert found["allowed"] == [True, True]
    assert "PermissionError" in found["denied"]
    assert found["modes"] == {"io": "0440", "network": "0440", "io-programs": "0700"}


def test_unloading_leaves_nothing(results: dict[str, Any]) -> None:
    found = result(results, "unload")
    assert found["loaded"] > 30
    assert found["status"] == ["loaded", "loaded", "", []]
    assert found["without io"] == ["ended", "on_exit", "on_fork", "on_free", "tasks", "version"]
    assert (found["unloaded"], found["left"]) == ([], False)


@at_night
def test_a_kernel_that_lacks_functions_loads_the_rest(results: dict[str, Any]) -> None:
    found = result(results, "lacking")
    *missing, refused, loaded = found["loaded"]
    assert missing == [
        f"ccagent: not counted: {hook.counts}: {hook.function}: this kernel has no such function"
        for hook in HOOKS
        if hook.function in HIDDEN - OF_OLD_KERNELS
    ]
    assert refused.startswith("ccagent: not counted: TCP received: io: the kernel")
    assert ": loaded, " in loaded
    assert found["status"]["io"] == "loaded"
    assert found["status"]["not_counted"] == ", ".join(
        hook.counts for hook in HOOKS if hook.function in {*HIDDEN, "tcp_recvmsg"} - OF_OLD_KERNELS
    )


@at_night
@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("read_write", {"fsyncs": 3}),  # fsync(), and not fdatasync()
        ("vectors", {"reads": 3, "read_bytes": ...}),
        ("metadata", {"mkdirs": 1, "renames": 1}),
    ],
)
def test_the_rest_is_counted_to_the_byte(
    results: dict[str, Any], name: str, lacking: dict[str, Any]
) -> None:
    found = result(results, "lacking")["programs"][name]
    unequal = differences(f"tmpfs {name}", found)
    assert set(unequal) == set(lacking)
    for value, number in lacking.items():
        expected, counted = unequal[value]
        assert expected - counted == (found["expected"][value] if number is ... else number)


@at_night
@pytest.mark.parametrize(("name", "lacking"), [("tcp", "receive"), ("udp", "sen")])
def test_the_rest_of_the_payload_is_counted_to_the_byte(
    results: dict[str, Any], name: str, lacking: str
) -> None:
    found = result(results, "lacking")["traffic"][name]
    (counted,) = found["counted"].values()
    unequal = differences(f"network {name}", found)
    assert unequal.keys() == {value for value in counted if value.startswith(lacking)}
    assert not any(counted[value] for value in unequal)


@at_night
def test_a_kernel_that_is_too_old_loads_the_programs_for_processes(
    results: dict[str, Any],
) -> None:
    found = result(results, "without helper")
    assert found["status"] == 1
    assert "counting I/O needs Linux 5.11 or newer. The programs for" in found["said"]
    assert found["left"] == ["ended", "on_exit", "on_fork", "on_free", "tasks", "version"]


def test_what_finds_no_room_is_counted_as_lost(results: dict[str, Any]) -> None:
    found = result(results, "overflow")
    assert 0 < len(found["written"]) < found["jobs"]
    assert set(found["written"]) == {100}
    assert found["lost"] + sum(found["written"]) >= found["jobs"] * 100
    # While the table is crowded, jobs that have ended make room once they were read.
    assert found["left"] == []
    assert found["later"] == 100


def test_a_job_with_many_mounts_has_a_bounded_number_of_entries(results: dict[str, Any]) -> None:
    found = result(results, "many mounts")
    assert found["entries"] <= 65
    assert found["bytes"] == 70 * 100


def test_a_job_with_many_mounts_leaves_room_for_others(results: dict[str, Any]) -> None:
    assert result(results, "crowd") == {"written": [100, 100], "lost": 0}


@at_night
def test_views_show_the_mounts_of_a_job(results: dict[str, Any]) -> None:
    found = result(results, "views")
    expected = found["expected"]
    read, written = max(found["mounts"])
    # How many seconds there were between the readings is the kernel's knowledge.
    assert read / written == pytest.approx(expected["read_bytes"] / expected["write_bytes"])
    assert found["note"] == ""
    assert found["screen"][1].startswith("JOB      MOUNT")
    assert any(f" read in {expected['reads']} calls" in line for line in found["report"])
    assert found["other directory"] == NOT_LOADED


def test_an_ended_job_is_kept_until_it_was_read(results: dict[str, Any]) -> None:
    found = result(results, "expire")
    assert found["first"]
    assert found["ns"] > 0
    assert found["last"][-1] is False


@at_night
def test_a_job_that_waited_for_a_slow_mount(results: dict[str, Any]) -> None:
    """bindfs reads 200 kB/s: 1 MiB took five seconds, nearly all of them in its reads."""
    ((rule, text),) = result(results, "slow mount")
    assert rule == "wait-mount"
    assert "it waited for /mnt/slow (fuse" in text
    assert re.search(r"[0-9.]+ ms a read or write, [89][0-9](\.9)? % of its tasks' time", text)


@at_night
def test_a_job_that_waited_for_memory(results: dict[str, Any]) -> None:
    ((rule, text),) = result(results, "memory pressure")
    assert rule == "mem-pressure"
    assert "of the time a task waited for memory on vm" in text
