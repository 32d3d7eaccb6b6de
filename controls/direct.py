"""Commands without a service: read this machine, restore changes after a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ccagent.controls.audit import Audit
from ccagent.controls.catalogue import Catalogue, find_features, standard_classes
from ccagent.controls.changes import Changes
from ccagent.controls.journal import Journal
from ccagent.controls.policy import RESTORE, Policy, RequestSender
from ccagent.controls.responder import Responder
from ccagent.errors import ControlError
from ccagent.service.instance import Lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.controls.settings import ControlSetup
    from ccagent.machine.node import Node
    from ccagent.records.line_protocol import Line


def answer_directly(setup: ControlSetup, node: Node, lines: Sequence[Line]) -> list[Line]:
    """Answer GET with this user's permissions; restore the changes of an ended service.

    Raise ControlError if a service runs or this user is not root.
    """
    catalogue = Catalogue(find_features(node, standard_classes()))
    if not any(line.measurement == RESTORE for line in lines):
        responder = _make_responder(setup, node, catalogue, None)
        return [responder.answer(line, RequestSender("here"), "GET") for line in lines]
    directory = setup.settings.state_directory
    if os.geteuid() != 0:
        raise ControlError("restore: no service runs, and only root may put values back")
    if not os.path.lexists(directory):
        # Epilogs run on every node. Slurm drains a node if its epilog fails.
        responder = _make_responder(setup, node, catalogue, None)
        return [responder.reply(line, "INFO", "Restored 0 values: SUCCESS!") for line in lines]
    lock = Lock(os.path.join(directory, "control.lock"), "controls.state-directory")
    try:
        audit = Audit(directory, node.clock.time, lambda _: None)
        changes = Changes(node, catalogue, Journal(directory), audit)
        changes.recover_after_boot()
        responder = _make_responder(setup, node, catalogue, changes)
        root = RequestSender("root on this node", is_root=True)
        return [responder.answer(line, root) for line in lines]
    finally:
        lock.release()


def _make_responder(
    setup: ControlSetup, node: Node, catalogue: Catalogue, changes: Changes | None
) -> Responder:
    def configuration() -> str:
        raise ControlError("config: no service runs on this node")

    return Responder(
        node,
        setup.settings,
        policy=Policy(setup.settings),
        catalogue=catalogue,
        changes=changes,
        audit=Audit(setup.settings.state_directory, node.clock.time, lambda _: None),
        configuration=configuration,
    )
