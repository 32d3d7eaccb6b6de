"""What jobs read, write, send and receive, on a machine with Debian's kernel: to the byte.

Each program ran in the control group of a job that had ended, and was removed, before the counters
were read. Kernels that refuse such programs are common where tests run: see debian_machine.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ccagent.views.top.mounts import NOT_LOADED
from tests.support.debian_machine import download_kernel, run_in_machine
from tests.support.io_scenarios import FILE_SYSTEMS, FIO, NETWORK, scripts_on
from tests.support.kernel_programs import SOURCES

pytestmark = pytest.mark.xdist_group("debian kernel")

COMPARISONS = [(kind, script) for kind in FILE_SYSTEMS for script in scripts_on(kind)]
OF_THE_FILE_SYSTEM = {"overlay listing": {"stats"}, "overlay read_write": {"fsyncs"}}
"""Operations that a file system does by itself, beside those of the program."""


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
    # Ended jobs are kept for four seconds here.
    compiler = directory / "compiler"
    compiler.write_text('#!/bin/sh\nexec clang -DKEPT=4000000000ULL "$@"\n')
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


@pytest.mark.parametrize(
    ("kind", "script"), [(kind, name) for kind, name in COMPARISONS if name != "mmap"]
)
def test_a_program_is_counted_to_the_byte(results: dict[str, Any], kind: str, script: str) -> None:
    found = result(results, f"{kind} {script}")
    own = OF_THE_FILE_SYSTEM.get(f"{kind} {script}", set())
    # A write that is to be on the disk is no call of fsync().
    counted = {name: value for name, value in found["counted"].items() if name not in own}
    expected = {name: value for name, value in found["expected"].items() if name not in own}
    assert counted == expected


@pytest.mark.parametrize("kind", ["ext4", "nfs"])
def test_mapped_files_have_faults_and_no_bytes(results: dict[str, Any], kind: str) -> None:
    counted = result(results, f"{kind} mmap")["counted"]
    assert counted.pop("major_faults") >= 1
    assert counted == {"opens": 1, "stats": 1}


def test_dd_with_and_without_the_page_cache(results: dict[str, Any]) -> None:
    for name in ("dd", "dd direct"):
        counted = result(results, name)
        assert (counted["writes"], counted["write_bytes"]) == (8, 8 << 20)
    counted = result(results, "dd direct read")
    assert (counted["reads"], counted["read_bytes"]) == (129, 8 << 20)  # the last one is the end


@pytest.mark.parametrize("name", FIO)
def test_asynchronous_requests_are_counted_with_their_results(
    results: dict[str, Any], name: str
) -> None:
    found = result(results, f"fio {name}")
    told, counted = found["told"], found["counted"]
    for kind in ("read", "write"):
        assert counted[f"async_{kind}s"] == told[f"{kind}_calls"]
        assert counted[f"async_{kind}_bytes"] == told[f"{kind}_size"]
        assert f"{kind}_bytes" not in counted


@pytest.mark.parametrize("name", NETWORK)
def test_payload_is_counted_to_the_byte(results: dict[str, Any], name: str) -> None:
    found = result(results, f"network {name}")
    ((kind, counted),) = found["counted"].items()
    assert kind == name[:3] + ("" if name.endswith("_veth") else " loopback")
    for value, number in found["expected"].items():
        # A datagram without payload is no transfer.
        assert counted[value] == number - (name == "udp" and value in {"sends", "receives"})


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
    assert found["without io"] == ["ended", "on_exit", "on_free", "tasks", "version"]
    assert (found["unloaded"], found["left"]) == ([], False)


def test_a_kernel_that_lacks_functions_counts_the_rest(results: dict[str, Any]) -> None:
    found = result(results, "lacking")
    assert {"readv", "mkdirs", "TCP received"} <= set(found["left_out"])
    assert set(found["missing"]) <= set(found["left_out"])
    expected = {
        name: value for name, value in found["expected"].items() if not name.startswith("read")
    }
    assert found["counted"].pop("write_ns") > 0
    assert found["counted"] == expected


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
