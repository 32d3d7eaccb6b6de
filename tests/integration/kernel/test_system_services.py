"""systemd's units and RDMA of a job, on a machine with Debian's kernel that has both.

That takes minutes: HYPOTHESIS_PROFILE=nightly.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.debian_machine import download_kernel, run_in_machine
from tests.support.effort import IS_NIGHTLY
from tests.support.exposition import Known, Series, parse
from tests.support.system_scenarios import PACKAGES

pytestmark = pytest.mark.skipif(not IS_NIGHTLY, reason="takes minutes: HYPOTHESIS_PROFILE=nightly")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the programs of the machine and ccagent said; the machine is there for a while."""
    directory = tmp_path_factory.mktemp("services")
    packages = directory / "packages"
    subprocess.run(
        ["apt-get", "-o", "APT::Sandbox::User=root", "download", *PACKAGES],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    for package in directory.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, packages], check=True)
        package.unlink()
    output = run_in_machine(
        download_kernel(directory), directory, "tests.support.system_scenarios", str(packages)
    )
    (line,) = [line for line in output.splitlines() if line.startswith('{"rdma"')]
    found: dict[str, Any] = json.loads(line)
    return found


def test_rdma_of_a_job_is_what_rdma_resource_shows(results: dict[str, Any]) -> None:
    found = results["rdma"]
    assert "error" not in found, found["error"]
    shown = found["shown"]
    assert found["own"] == {
        "queue_pairs": len(shown["qp"]),
        "completion_queues": len(shown["cq"]),
        "completion_entries": sum(each["cqe"] for each in shown["cq"]),
        "memory_regions": len(shown["mr"]),
        "memory": sum(each["mrlen"] for each in shown["mr"]),
        "contexts": len(shown["ctx"]),
    }
    assert found["own"]["queue_pairs"] == 1


def test_rdma_needs_no_privilege(results: dict[str, Any]) -> None:
    assert results["rdma"]["unprivileged"] == results["rdma"]["own"]


def of_systemd(document: str) -> dict[Series, Known]:
    return {key: each for key, each in parse(document).items() if "node_systemd_" in key[0]}


def test_units_of_systemd_are_those_of_node_exporter(results: dict[str, Any]) -> None:
    found = results["systemd"]
    assert "error" not in found, found["error"]
    before, own, after = (of_systemd(found[name]) for name in ("before", "own", "after"))
    assert len(own) > 150, found["complaint"]
    assert own.keys() == before.keys()
    steady = {key for key in before if before[key] == after.get(key)}
    assert len(steady) > 0.9 * len(before)
    assert {key: own[key] for key in steady} == {key: before[key] for key in steady}
