"""Answers to requests, line by line: value, result of a change, or reason of a refusal.

Source: cc-node-controller's protocol. A request is a control message. The answer is a log message
with measurement and tags of the request, `level` and `hostname`. This module is independent of the
way of requests. It answers also without a service: it reads this machine, and restores changes
after a crash.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from ccagent.config.duration import Duration
from ccagent.controls.changes import Changes, Order, find_owner
from ccagent.controls.control import (
    DEVICE_TYPES,
    Catalogue,
    DeviceType,
    Feature,
    check_device,
    find_features,
    read_topology,
    shortened,
)
from ccagent.controls.journal import Audit, Entry, Journal, read_audit
from ccagent.controls.policy import Policy, RateLimit, RequestSender, SenderLimits
from ccagent.controls.settings import standard_classes
from ccagent.errors import CcagentError, ControlError, NotPermittedError
from ccagent.log import logger
from ccagent.records.line_protocol import Line
from ccagent.senders import SenderTable
from ccagent.service.instance import Lock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccagent.controls.settings import ControlSetup, ControlsSettings
    from ccagent.machine.node import Node

Method = Literal["", "GET", "PUT"]

TOPOLOGY, CONTROLS, CONFIG, RESTORE, AUDIT, STATUS = (
    "topology", "controls", "config", "restore", "audit", "status",
)  # fmt: skip

_DOCUMENTS = frozenset({TOPOLOGY, CONTROLS, CONFIG, RESTORE, AUDIT, STATUS})

_CLASSES = {"freq": "cpu_freq", "prefetcher": "prefetch"}
"""Classes of the specification with different names of categories."""

_ASSIGNMENT = re.compile(r"(?:intel\.|amd\.)?([A-Za-z0-9_.]{1,100})(?:=(.*))?", re.DOTALL)
_ALIASES = {"pkg_energy_status": "pkg_energy", "dram_energy_status": "dram_energy"}
_JOB = re.compile(r"[0-9]{1,18}", re.ASCII)
_REFUSALS_A_MINUTE = 60
_LONGEST_IN_AUDIT = 200
"""Maximum characters of a name in the audit: senders must not fill it with long names."""
_LONGEST_REASON = 1000
_AUDIT_LINES = 100


class _Request(NamedTuple):
    """A control request with checked form. value: None for GET."""

    name: str
    value: str | None
    tags: dict[str, str]


class Responder:
    """Answers for one node. Without `changes` no control can be set."""

    def __init__(
        self,
        node: Node,
        settings: ControlsSettings,
        *,
        policy: Policy,
        catalogue: Catalogue,
        changes: Changes | None,
        audit: Audit,
        configuration: Callable[[], str],
        senders: SenderTable | None = None,
    ) -> None:
        """Set the parts. configuration: returns the answer to GET of config.

        senders: counters that go on after a reload.
        """
        self.catalogue = catalogue
        self._node = node
        self._settings = settings
        self._policy = policy
        self._changes = changes
        self._audit = audit
        self._configuration = configuration
        self._hanging: set[str] = set()
        """Controls with devices that are not read, because a read has hung."""
        self._puts = SenderLimits(settings, settings.puts_per_minute)
        self._refusals = SenderLimits(settings, _REFUSALS_A_MINUTE)
        self._forged = RateLimit(_REFUSALS_A_MINUTE)
        self._senders = SenderTable() if senders is None else senders
        self.node_name = node.hostname.partition(".")[0]
        """The short name of this node."""
        self._names = {node.hostname, self.node_name}

    def is_for_us(self, line: Line) -> bool:
        """Return whether a line is for this node or for all nodes."""
        hostname = line.tags.get("hostname")
        return hostname is None or hostname in self._names

    def is_for_all(self, line: Line) -> bool:
        """Return whether a line is for all nodes."""
        return "hostname" not in line.tags

    def is_quick(self, line: Line, sender: RequestSender, only: Method) -> bool:
        """Return whether an answer needs at most the read of one file of the kernel."""
        if line.measurement in _DOCUMENTS and not (line.measurement == CONFIG and line.value):
            return False
        try:
            if _method_of(line, only) == "PUT":
                return self._puts.find(sender).is_spent(self._node.clock.monotonic())
            return self._find(self._parse(line, "GET"))[0].is_quick
        except ControlError:
            return True

    def note_hanging(self, line: Line) -> None:
        """Refuse further reads of the control in a line: each would stop all other requests."""
        with contextlib.suppress(ControlError):
            feature, device = self._find(self._parse(line, "GET"))
            self._hanging.add(f"{feature.control.full_name}@{device}")

    def answer(self, line: Line, sender: RequestSender, only: Method = "") -> Line:
        """Return the answer to a line for this node. Must not raise on any content."""
        try:
            return self.reply(line, "INFO", self._respond(line, sender, only))
        except CcagentError as error:
            self._senders.count(sender.name, refused=1)
            return self.reply(line, "ERROR", str(error))
        except Exception as error:  # noqa: BLE001 - nobody foresaw it, and an answer is owed
            logger.exception(
                "controls: %s failed", shortened(line.measurement), key="controls request failed"
            )
            return self.reply(line, "ERROR", f"it failed: {type(error).__name__}; see the log")

    def reply(self, line: Line, level: Literal["INFO", "ERROR"], text: str) -> Line:
        """Return an answer."""
        tags = {"hostname": self.node_name, **line.tags, "level": level}
        clean = text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)
        return Line(line.measurement, tags, "log", clean, int(self._node.clock.time() * 1e9))

    def _respond(self, line: Line, sender: RequestSender, only: Method) -> str:
        measurement = line.measurement
        if measurement in {TOPOLOGY, CONTROLS}:  # whatever the rest is, as the reference
            return self._document(measurement)
        method = _method_of(line, only)
        if method == "PUT":
            self._admit(sender)
        if measurement in _DOCUMENTS and not (measurement == CONFIG and line.value):
            if method == "PUT" and measurement == RESTORE:
                self._policy.check_sender(sender, None, RESTORE)
                return self._restore(line, sender)
            if method == "PUT" or measurement == RESTORE:
                raise ControlError(f"{measurement}: not for method {method}")
            return self._document(measurement)
        request = self._parse(line, method)
        if request.value is None:
            return self._get(request)
        try:
            return self._put(request, request.value, sender)
        except ControlError as error:
            if self._refusals.find(sender).take(self._node.clock.monotonic()):
                self._senders.count(sender.name, log_lines=1)
                entry = Entry(
                    action="refused", control=request.name[:_LONGEST_IN_AUDIT], by=sender.name,
                    device=request.tags.get("type-id", "")[:_LONGEST_IN_AUDIT],
                    requested=shortened(request.value), reason=str(error)[:_LONGEST_REASON],
                )  # fmt: skip
                self._audit.add(entry, f"controls refused {self._refusals.identity(sender)}")
            raise

    def _admit(self, sender: RequestSender) -> None:
        """Count a PUT request for its sender. Raise ControlError above the sender's limit."""
        self._senders.count(sender.name, puts=1)
        limit = self._puts.find(sender)
        if not limit.take(self._node.clock.monotonic()):
            text = f"more than {limit.most} PUT requests within a minute"
            key = f"controls limit {self._puts.identity(sender)}"
            logger.warning("controls: %s: %s", sender.name, text, key=key)
            raise ControlError(text)

    def admit_forged(self, sender: RequestSender, reason: str) -> bool:
        """Count a request with an invalid signature; return whether to answer it.

        All such requests share a limit. Beyond it their messages are not parsed.
        """
        self._senders.count(sender.name, refused=1)
        logger.warning(
            "controls: a request on %s: %s", sender.name, reason, key="controls signature"
        )
        return self._forged.take(self._node.clock.monotonic())

    def _document(self, name: str) -> str:
        self._policy.check_get()
        if name == CONTROLS:
            return self.catalogue.listing()
        if name == CONFIG:
            return self._configuration()
        document: object = {"senders": self._senders.dearest()}
        if name == TOPOLOGY:
            document = read_topology(self._node)
        elif name == AUDIT:
            try:
                document = {"audit": read_audit(self._settings.state_directory, _AUDIT_LINES)}
            except OSError as error:
                raise NotPermittedError(f"audit: {error.strerror}") from error
        return msgspec.json.encode(document).decode()

    def _parse(self, line: Line, method: Method) -> _Request:
        """Return a control request from a line. Raise ControlError for an invalid form."""
        value = line.value
        if not isinstance(value, str):
            raise ControlError("not a control message: the field control is not a string")
        name, text = line.measurement, value
        category = _CLASSES.get(name, name)
        if "." not in name and self.catalogue.has_category(category):
            # In the specification's form the measurement is the class. The field has the rest.
            match = _ASSIGNMENT.fullmatch(value)
            if match is None:
                raise ControlError(f"{name}: the field control names no control of this class")
            inner = match[1].replace(".", "_") if category != CONFIG else match[1]
            name, text = f"{category}.{_ALIASES.get(inner, inner)}", match[2] or ""
        if "type" not in line.tags:
            raise ControlError("no tag type")
        if "type-id" not in line.tags and line.tags["type"] != "node":
            raise ControlError("no tag type-id")
        return _Request(name, text if method == "PUT" else None, line.tags)

    def _find(self, request: _Request) -> tuple[Feature, str]:
        try:
            feature = self.catalogue.find(request.name)
        except ControlError as error:
            raise ControlError(f"{shortened(request.name)}: {error}") from error
        device_type = _device_type(request.tags["type"], feature)
        return feature, check_device(feature, device_type, request.tags.get("type-id", ""))

    def _get(self, request: _Request) -> str:
        self._policy.check_get()
        feature, device = self._find(request)
        if self._hanging and (name := f"{feature.control.full_name}@{device}") in self._hanging:
            raise ControlError(f"{name}: its read has hung: not read until the next start")
        return feature.read(device)

    def _put(self, request: _Request, value: str, sender: RequestSender) -> str:
        feature, device = self._find(request)
        control = feature.control
        if not control.is_writable:
            raise ControlError(f"{control.full_name}: it can only be read")
        text = control.parse(value)
        self._policy.check_put(control, text, sender)
        job = find_owner(self._node, is_needed=self._settings.owner_only and not sender.is_root)
        setting = f"{control.full_name}={text} for device {control.device_type}/{device}"
        lease = _lease(request.tags, self._policy.lease(control))
        if self._settings.dry_run or request.tags.get("dry-run") in {"1", "true"}:
            refusal = feature.limits(device).refusal(text)
            if refusal:
                raise ControlError(f"{control.full_name}: out of the machine's range: {refusal}")
            before = feature.read(device)
            self._senders.count(sender.name, log_lines=1)
            entry = Entry(
                action="dry-run", control=control.full_name, by=sender.name, device=device,
                before=before, requested=text, job=job, lease=lease,
            )  # fmt: skip
            self._audit.add(entry)
            return f"Dry run: would set {setting}; it is {before}, nothing was written"
        self._senders.count(sender.name, log_lines=1)
        after = self._held().set(Order(feature, device, text, sender.name, lease, job))
        rounded = "" if after == text else f" ({after} is read back)"
        return f"Set {setting}{rounded}: SUCCESS!"

    def _held(self) -> Changes:
        if self._changes is None:
            raise ControlError("nothing can be set: ccagent-control.service does not run")
        return self._changes

    def _restore(self, line: Line, sender: RequestSender) -> str:
        """Restore all changes, those of one control, or those of a job."""
        name = line.value if isinstance(line.value, str) else ""
        job = line.tags.get("job", "")
        if job and not _JOB.fullmatch(job):
            raise ControlError(f"restore: job {shortened(job)} is not a number")
        changes = self._held()
        chosen = [
            change
            for change in reversed(changes.all())
            if (not name or change.control == name) and (not job or change.job == int(job))
        ]
        for change in chosen:
            # A sender without permission to set a control may not restore it.
            self._policy.check_restore(change.control, sender)
        failed = [c for c in chosen if not changes.restore(c, f"restore by {sender.name}")]
        if failed:
            names = ", ".join(f"{c.control}@{c.device}" for c in failed)
            raise ControlError(f"restore: failed for {names}; it is tried again")
        return f"Restored {len(chosen)} values: SUCCESS!"


def _method_of(line: Line, only: Method) -> Method:
    """Return the method of a line. Raise ControlError if its subject is for another method."""
    named = line.tags.get("method", only)
    if line.field != "control" or named not in {"GET", "PUT"}:
        raise ControlError(
            "not a control message: a field control and a tag method=GET or method=PUT are needed"
        )
    if only and named != only:
        raise ControlError(f"this subject is for {only} only")
    return "GET" if named == "GET" else "PUT"


def _device_type(word: str, feature: Feature) -> DeviceType | None:
    if word == "accelerator" and feature.control.device_type in {"nvidia_gpu", "amd_gpu"}:
        return feature.control.device_type
    return DEVICE_TYPES.get(word)


def _lease(tags: dict[str, str], longest: float) -> float:
    """Return the lease in seconds: the policy's, or a shorter requested one."""
    asked = tags.get("lease")
    if asked is None:
        return longest
    try:
        seconds = Duration(asked).seconds
    except ValueError as error:
        raise ControlError(f"lease: {error}") from error
    if seconds <= 0:
        raise ControlError("lease: longer than 0 s is needed")
    return min(seconds, longest) if longest else seconds


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
