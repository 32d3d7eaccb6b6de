"""Migrations between two hosts with privileged daemons, as on compute nodes; at night."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.machines.conftest import MachineSite
from tests.support.effort import IS_NIGHTLY
from tests.support.libvirt_namespaces import PrivilegedHost

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not IS_NIGHTLY, reason="at night: HYPOTHESIS_PROFILE=nightly")


@pytest.fixture(scope="module", params=["peer to peer", "by the service"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MachineSite]:
    made = MachineSite(tmp_path_factory.mktemp("privileged"), kind=PrivilegedHost)
    try:
        for framework in made.frameworks:
            framework.is_peer_to_peer = request.param == "peer to peer"
            framework.start()
        yield made
    finally:
        made.stop()


def test_a_defined_machine_moves_there_and_back(site: MachineSite) -> None:
    site.run("vm-1")
    for source, target, kind in (("s1", "s2", "live"), ("s2", "s1", "warm")):
        moved = site.scheduler.answer(
            site.scheduler.migrate(
                source, "vm-1", target, migration_type=kind, vcpu_map=[[1]],
            )
        )  # fmt: skip
        host = site.first if target == "s1" else site.second
        assert (moved["status"], moved["host"], moved["state"]) == ("success", target, "running")
        assert moved["process-id"] == host.process_of("vm-1")
        assert site.libvirt.where("vm-1") == [(target, "running")]
        assert "Persistent:     yes" in host.virsh("dominfo", "vm-1")
        assert host.virsh("vcpupin", "vm-1").split()[-1] == "1"
        site.libvirt.lives("vm-1")
    site.remove("vm-1")


def test_two_machines_change_places_and_a_node_is_evacuated(site: MachineSite) -> None:
    site.run("vm-1")
    site.second.virsh("create", str(site.libvirt.definition("vm-2")))
    result = site.scheduler.answer(
        site.scheduler.migrate(
            "s1", "vm-1", "s2", migration_type="live", swap_with={"vm-name": "vm-2"}
        )
    )
    assert (result["status"], result["host"]) == ("success", "s2")
    assert site.libvirt.where("vm-2") == [("s1", "running")]
    emptied = site.scheduler.ask(
        "s2", "evacuate node", destinations=["s1"], parameter={"migration-type": "live"}
    )
    assert [each["status"] for each in emptied["list"]] == ["success"]
    assert site.first.machines() == {"vm-1": "running", "vm-2": "running"}
    for name in ("vm-1", "vm-2"):
        site.remove(name)


def test_the_start_of_a_machine_that_runs_elsewhere_is_refused(site: MachineSite) -> None:
    site.first.virsh("define", str(site.libvirt.definition("vm-1")))
    site.second.virsh("create", str(site.libvirt.definition("vm-1")))
    result = site.scheduler.ask("s1", "start vm", vm_configurations=[{"vm-name": "vm-1"}])
    assert result["list"][0]["details"] == "it runs on s2 already"
    site.remove("vm-1")
