"""Commands without a service: read this machine, restore changes after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from ccagent.controls.audit import Audit, Entry, read_audit
from ccagent.controls.catalogue import Catalogue, find_features, standard_classes
from ccagent.controls.changes import Changes
from ccagent.controls.journal import Journal
from ccagent.controls.policy import Policy, RequestSender
from ccagent.controls.responder import Pages, Responder
from ccagent.controls.topology import read_topology
from ccagent.errors import ControlError
from ccagent.service.lock import Lock

if TYPE_CHECKING:
    from ccagent.controls.setup import ControlSetup
    from ccagent.machine.node import Node
    from ccagent.records.line_protocol.lines import Line


def direct_responder(setup: ControlSetup, node: Node) -> Responder:
    """Return a responder for GET without a service, with this user's permissions."""
    catalogue = Catalogue(find_features(node, standard_classes()))
    return _responder(setup, node, catalogue, None)


def restore_directly(setup: ControlSetup, node: Node, line: Line) -> Line:
    """Restore the changes of an ended service. Without changes, do nothing.

    Raise ControlError if a service runs or this user is not root.
    """
    directory = setup.settings.state_directory
    if os.geteuid() != 0:
        raise ControlError("restore: no service runs, and only root may put values back")
    if not os.path.lexists(directory):
        # Epilogs run on every node. Slurm drains a node if its epilog fails.
        return direct_responder(setup, node).reply(line, "INFO", "Restored 0 values: SUCCESS!")
    lock = Lock(os.path.join(directory, "control.lock"), "controls.state-directory")
    try:
        catalogue = Catalogue(find_features(node, standard_classes()))
        journal = Journal(directory)
        audit = Audit(directory, node.clock.time, lambda _: None)
        changes = Changes(node, catalogue, journal, audit)
        changes.recover_after_boot()
        responder = _responder(setup, node, catalogue, changes)
        return responder.answer(line, RequestSender("root on this node", is_root=True))
    finally:
        lock.release()


def _responder(
    setup: ControlSetup, node: Node, catalogue: Catalogue, changes: Changes | None
) -> Responder:
    settings = setup.settings

    def last(count: int) -> str:
        entries: list[Entry] = read_audit(settings.state_directory, count)
        return msgspec.json.encode({"audit": entries}).decode()

    def configuration() -> str:
        raise ControlError("config: no service runs on this node")

    return Responder(
        node,
        settings,
        policy=Policy(settings),
        catalogue=catalogue,
        changes=changes,
        audit=Audit(settings.state_directory, node.clock.time, lambda _: None),
        pages=Pages(lambda: msgspec.json.encode(read_topology(node)).decode(), configuration, last),
    )
