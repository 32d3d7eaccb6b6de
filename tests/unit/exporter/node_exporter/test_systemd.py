"""systemd: what systemctl prints, on a machine with it and on one without."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.exporter.collector import Collector
from ccagent.exporter.node_exporter.systemd import (
    SystemdCollector,
    parse_list,
    parse_properties,
    parse_time,
)
from tests.support.scraped import collected, make
from tests.support.tree import TreeNode

LIST = """\
-.mount                        loaded    active   mounted   Root Mount
dbus.socket                    loaded    active   running   D-Bus System Message Bus Socket
systemd-journald.service       loaded    active   running   Journal Service
systemd-binfmt.service         loaded    failed   failed    Set Up Additional Binary Formats
connman.service                not-found inactive dead      connman.service
man-db.timer                   loaded    active   waiting   Daily man-db regeneration
fstrim.timer                   loaded    inactive dead      Discard unused blocks once a week
"""
"""Of systemctl 252 (Debian 12)."""
MANAGER = "Version=252.38-1~deb12u1\nSystemState=degraded\n"
TYPES = "Type=notify\nId=systemd-journald.service\n\nType=oneshot\nId=systemd-binfmt.service\n"
DETAILS = """\
NConnections=2
NAccepted=31
NRefused=0
Id=dbus.socket

LastTriggerUSec=Sat 2026-11-28 03:42:26 UTC
Id=man-db.timer

LastTriggerUSec=
Id=fstrim.timer
"""
SYSTEMCTL = """\
#!/bin/sh
echo "$@" >>{root}/calls
case "$*" in
*list-units*) cat {root}/list ;;
*SystemState*) cat {root}/manager ;;
*Id,Type*) cat {root}/types ;;
*) cat {root}/details ;;
esac
"""


@pytest.fixture
def node(tmp_path: Path) -> TreeNode:
    """A machine with systemd and this systemctl."""
    made = TreeNode(tmp_path)
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in (
        ("list", LIST), ("manager", MANAGER), ("types", TYPES), ("details", DETAILS),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    program = tmp_path / "systemctl"
    program.write_text(SYSTEMCTL.format(root=tmp_path))
    program.chmod(0o755)
    return made


def systemd(node: TreeNode) -> Collector:
    return make(SystemdCollector, systemctl=str(node.path / "systemctl"))


def test_states_of_units(node: TreeNode) -> None:
    found = collected(systemd(node), node)
    assert found['node_systemd_version{version="252.38-1~deb12u1"}'] == 252.38
    assert found["node_systemd_system_running"] == 0
    counts = {"active": 4, "inactive": 2, "failed": 1, "activating": 0, "deactivating": 0}
    assert {
        state: found[f'node_systemd_units{{state="{state}"}}'] for state in counts
    } == counts  # fmt: skip
    name = 'node_systemd_unit_state{{name="{}",state="{}",type="{}"}}'
    assert found[name.format("systemd-journald.service", "active", "notify")] == 1
    assert found[name.format("systemd-journald.service", "failed", "notify")] == 0
    assert found[name.format("systemd-binfmt.service", "failed", "oneshot")] == 1
    assert found[name.format("man-db.timer", "active", "")] == 1
    assert not [each for each in found if "connman" in each or "-.mount" in each]


def test_sockets_and_timers(node: TreeNode) -> None:
    found = collected(systemd(node), node)
    assert found['node_systemd_socket_accepted_connections_total{name="dbus.socket"}'] == 31
    assert found['node_systemd_socket_current_connections{name="dbus.socket"}'] == 2
    trigger = 'node_systemd_timer_last_trigger_seconds{{name="{}.timer"}}'
    assert found[trigger.format("man-db")] == 1795837346
    assert found[trigger.format("fstrim")] == 0


def test_the_type_of_a_service_is_asked_once(node: TreeNode) -> None:
    collector = systemd(node)
    assert collected(collector, node) == collected(collector, node)
    calls = (node.path / "calls").read_text().splitlines()
    assert len([call for call in calls if "Id,Type" in call]) == 1
    assert "-- systemd-journald.service systemd-binfmt.service" in "\n".join(calls)


def test_a_container_has_no_systemd(tmp_path: Path) -> None:
    with pytest.raises(NotHereError, match="not booted with systemd"):
        collected(make(SystemdCollector), TreeNode(tmp_path))


def test_a_systemctl_that_fails(node: TreeNode) -> None:
    (node.path / "systemctl").write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    with pytest.raises(ProgramError, match="Failed to connect to bus"):
        collected(systemd(node), node)


def test_an_unknown_version_is_an_error(node: TreeNode) -> None:
    (node.path / "manager").write_text("Version=x\n")
    with pytest.raises(UnparsableError, match="no version"):
        collected(systemd(node), node)


@given(st.text())
def test_whatever_systemctl_prints_is_taken_or_an_error(text: str) -> None:
    assert all(unit.name for unit in parse_list(text))
    assert all(parse_properties(text))
    with contextlib.suppress(UnparsableError):
        parse_time(text)
