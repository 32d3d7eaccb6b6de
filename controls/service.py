"""The control service: it answers requests, and restores changes.

The main thread ends leases, watches the answering thread, and handles signals. It sleeps until work
is due.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.controls.audit import Audit, read_audit
from ccagent.controls.catalogue import Catalogue, find_features, standard_classes
from ccagent.controls.changes import Changes
from ccagent.controls.journal import Journal, newest_first
from ccagent.controls.leader import Desk, Leader
from ccagent.controls.local_socket import LocalSocket
from ccagent.controls.owner import find_jobs
from ccagent.controls.policy import Policy
from ccagent.controls.responder import Pages, Responder
from ccagent.controls.settings import all_senders
from ccagent.controls.topology import read_topology
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    EncodingError,
    NotPermittedError,
    ProgramError,
)
from ccagent.log import logger, say
from ccagent.machine.background import BackgroundCall
from ccagent.machine.node import read_host_name
from ccagent.senders import SenderTable
from ccagent.service.lock import Lock
from ccagent.service.notify import Notifier
from ccagent.service.private_directories import make_directory
from ccagent.service.signals import ignore_signals, release_blocked
from ccagent.service.wake_up import WakeUp

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ccagent.controls.audit import Entry
    from ccagent.controls.config_class import ConfigSource
    from ccagent.controls.journal import Change
    from ccagent.controls.setup import ControlSetup
    from ccagent.controls.signatures import SignatureCheck
    from ccagent.machine.node import Node

_LOCK = "control.lock"
_JOBS_EVERY = 5.0
_STOP_WITHIN = 10.0
_AFTER_AN_ERROR = 1.0
_RECOVER_WITHIN = 30.0
_MOST_HANGING = 16
_LONGEST_WAIT = 60.0
"""Seconds between checks of the host name."""

_SECOND = 10**9


class ControlService:
    """Runs until stopped. `load` returns the configuration, at the start and at each reload."""

    def __init__(self, load: Callable[[], ControlSetup], node: Node | None = None) -> None:
        self._load = load
        self._setup = load()
        self._node = node or self._setup.make_node()
        self._wake_up = WakeUp()
        self._stopping = False
        self._reload = False
        self._is_watching = False
        self._is_quiet = False
        self._seen = -1
        self._leaders = 0
        self._hanging: list[Leader] = []
        self._notifier = Notifier()
        self._signatures: SignatureCheck | None = None
        self._senders = SenderTable()
        self._started = time.time()
        self._host = read_host_name()

    def handle_signals(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP, from now until the process ends."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP:
                self.reload()
            else:
                self.stop()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_signal)
        release_blocked()

    def stop(self) -> None:
        """Ask `run` to end. A signal handler may call this."""
        self._stopping = True
        self._wake_up.set()

    def reload(self) -> None:
        """Ask `run` to read the configuration again. A signal handler may call this."""
        self._reload = True
        self._wake_up.set()

    def run(self) -> None:
        """Run until stopped. Raise CcagentError if the start fails."""
        settings = self._setup.settings
        lock = _take_lock(settings.state_directory)
        try:
            self._build()
            self._bounded(lambda: self._changes.recover(self._policy.allows), _RECOVER_WITHIN)
            local = LocalSocket(settings.socket, self._responder)
            self._local = local
            self._leader = self._new_leader()
            try:
                say(f"controls: started: {self._summary()}")
                self._notifier.ready(self._summary())
                while not self._stopping:
                    self._try_turn()
            finally:
                self._notifier.stopping()
                local.close()
                self._end()
        finally:
            ignore_signals()
            lock.release()
            self._notifier.close()

    def _build(self) -> None:
        settings = self._setup.settings
        self._journal = Journal(settings.state_directory)
        self._audit = Audit(settings.state_directory, self._node.clock.time, self._announce)
        self._catalogue = self._list_machine()
        self._changes = Changes(self._node, self._catalogue, self._journal, self._audit)
        self._desk: Desk | None = None
        self._arrange()
        self._desk = Desk(settings, self._responder, self._signatures, self._on_busy)

    def _arrange(self) -> None:
        """Create the objects that depend only on the configuration."""
        settings = self._setup.settings
        self._policy = Policy(settings)
        keys = frozenset(
            each.removeprefix("key:") for each in all_senders(settings) if each.startswith("key:")
        )
        if keys:
            from ccagent.controls.signatures import SignatureCheck

            self._signatures = self._signatures or SignatureCheck(self._started, keys)
        if self._signatures is not None:
            self._signatures.keys = keys  # used signatures stay used after a reload
        pages = Pages(self._topology, self._configuration, self._last_entries)
        self._responder = Responder(
            self._node,
            settings,
            policy=self._policy,
            catalogue=self._catalogue,
            changes=self._changes,
            audit=self._audit,
            pages=pages,
            senders=self._senders,
        )

    def _list_machine(self) -> Catalogue:
        settings = self._setup.settings
        classes = standard_classes()
        if any(name.startswith("config.") for name in settings.allow):
            from ccagent.controls.config_class import ConfigControls

            classes.append(ConfigControls(self._config_source(), settings.allow))
        return Catalogue(find_features(self._node, classes))

    def _try_turn(self) -> None:
        """Do due work. Only hanging requests or a new host name end the service."""
        try:
            self._turn()
        except ProgramError:
            raise
        except Exception:  # noqa: BLE001 - nobody foresaw it, and leases end all the same
            logger.exception("controls: the thread of leases failed and continues")
            self._node.clock.sleep(_AFTER_AN_ERROR)

    def _turn(self) -> None:
        self._notifier.alive()
        self._notice_name()
        if self._reload:
            self._reload = False
            self._read_again()
        self._watch()
        self._restore_due()
        self._node.clock.wait(self._patience(), self._wake_up.descriptor)
        self._wake_up.clear()

    def _notice_name(self) -> None:
        """Raise ProgramError if the host name has changed, for example by DHCP after the start.

        Otherwise the service would answer requests for the old name.
        """
        name = read_host_name()
        if name != self._host and not self._setup.table.get("hostname"):
            raise ProgramError(
                f"the name of this machine was {self._host} and is {name} now: the service ends, "
                "to be started again"
            )

    def _patience(self) -> float:
        """Return the seconds until work is due."""
        times = [_LONGEST_WAIT]
        due = self._changes.next_due()
        if due is not None:
            times.append(due)
        if self._changes.has_jobs:
            times.append(_JOBS_EVERY)
        if self._notifier.watchdog is not None:
            times.append(self._notifier.watchdog / 2)
        if self._is_watching:
            times.append(self._setup.settings.time_limit.seconds / 2)
        return 0.0 if self._stopping or self._reload else min(times)

    def _on_busy(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._wake_up.set()

    def _watch(self) -> None:
        """Replace a hanging thread. Stop watching after some time without requests."""
        desk = self._desk
        if desk is None or not self._is_watching:
            return
        limit = self._setup.settings.time_limit.seconds
        request = self._leader.take_over(limit)
        if request is not None:
            self._hanging = [each for each in self._hanging if each.is_alive] + [self._leader]
            if len(self._hanging) > _MOST_HANGING:
                raise ProgramError(f"{len(self._hanging)} requests hang: the service ends")
            name = request.line.measurement
            logger.error(
                "controls: %s: no answer within %g s", name, limit, key="controls no answer"
            )
            text = f"no answer of the machine within {limit:g} s"
            desk.post(request, self._responder.reply(request.line, "ERROR", text))
            self._leader = self._new_leader()
        elif desk.answered == self._seen and not self._leader.is_busy:
            # A request may have just started: check once more before the sleep.
            self._is_watching, self._is_quiet = not self._is_quiet, True
        else:
            self._is_quiet = False
        self._seen = desk.answered

    def _new_leader(self) -> Leader:
        assert self._desk is not None  # noqa: S101 - made before the first leader
        self._leaders += 1
        return Leader(self._desk, self._leaders)

    def _restore_due(self) -> None:
        jobs = find_jobs(self._node) if self._changes.has_jobs else frozenset[int]()
        for change, reason in self._changes.find_due(jobs):
            self._restore(change, reason)

    def _restore(self, change: Change, by: str) -> None:
        self._bounded(
            lambda: self._changes.restore(change, by), self._setup.settings.time_limit.seconds
        )

    def _bounded(self, function: Callable[[], object], seconds: float) -> None:
        """Call a function in a thread. Abandon the thread after the time limit."""
        done = WakeUp()
        try:
            call = BackgroundCall(function, "controls-restore", done.set)
        except CcagentError as error:
            done.close()
            logger.error("controls: %s", error)
            return
        deadline = time.monotonic() + seconds
        while not call.is_done and time.monotonic() < deadline:
            self._node.clock.wait(deadline - time.monotonic(), done.descriptor)
        if call.is_done:
            done.close()
            try:
                call.result()
            except CcagentError as error:
                logger.error("controls: %s", error)
            except Exception:  # noqa: BLE001 - the other values are put back all the same
                logger.exception("controls: putting a value back failed")

    def _read_again(self) -> None:
        """Apply a changed configuration. The old one stays if the new one is invalid."""
        self._notifier.reloading()
        old = self._setup
        try:
            setup = self._load()
            _check_unchanged(old, setup)
        except CcagentError as error:
            logger.error("controls: configuration not read again, the old one stays: %s", error)
            self._notifier.ready(f"configuration not read again, the old one stays: {error}")
            return
        self._setup = setup
        self._catalogue = self._list_machine()
        self._changes.replace_catalogue(self._catalogue)
        self._arrange()
        if self._desk is not None:
            self._desk.replace(setup.settings, self._responder, self._signatures)
        self._local.responder = self._responder
        for change in newest_first(self._changes.all()):
            if not self._policy.allows(change.control):
                self._restore(change, "the policy no longer allows it")
        say(f"controls: configuration read again: {self._summary()}")
        self._notifier.ready(self._summary())

    def _end(self) -> None:
        """Stop answering, then restore all changes."""
        self._changes.close()
        if self._desk is not None:
            self._desk.close()
        self._leader.join(self._setup.settings.time_limit.seconds)
        deadline = time.monotonic() + _STOP_WITHIN
        for change in newest_first(self._changes.all()):
            if time.monotonic() > deadline:
                break
            self._restore(change, "stop of the service")
        left = len(self._changes.all())
        if left:
            logger.error("controls: %d values are not put back; the next start tries again", left)
        self._journal.close()
        say("controls: stopped")

    def _summary(self) -> str:
        settings = self._setup.settings
        where = ", ".join(settings.subjects) if settings.url else "this node only"
        return (
            f"{len(self._catalogue)} controls, {len(settings.allow)} may be set, "
            f"{len(self._changes.all())} changes in effect; {where}"
        )

    def _announce(self, entry: Entry) -> None:
        """Send an event message for an audit entry."""
        subject = self._setup.settings.audit_subject
        if not subject or self._desk is None:
            return
        from ccagent.controls.control_lines import encode_line
        from ccagent.log import printable
        from ccagent.records.line_protocol.lines import Line

        tags = {
            "cluster": self._node.cluster, "hostname": self._node.hostname.partition(".")[0],
            "type": "node", "type-id": "0", "function": entry.action,
        }  # fmt: skip
        text = printable(msgspec.json.encode(entry).decode())
        line = Line("control", tags, "event", text, int(self._node.clock.time() * _SECOND))
        try:
            self._desk.send_event(subject, encode_line(line).encode())
        except EncodingError as error:  # the file and the log have the entry
            logger.warning("controls: no event message for an entry of the audit: %s", error)

    def _topology(self) -> str:
        return msgspec.json.encode(read_topology(self._node)).decode()

    def _configuration(self) -> str:
        return self._config_source().document()

    def _config_source(self) -> ConfigSource:
        from ccagent.controls.config_class import ConfigSource

        place = self._setup.place
        return ConfigSource(self._node, place, self._setup.settings, lambda: _read_table(place))

    def _last_entries(self, last: int) -> str:
        try:
            entries = read_audit(self._setup.settings.state_directory, last)
        except OSError as error:
            raise NotPermittedError(f"audit: {error.strerror}") from error
        return msgspec.json.encode({"audit": entries}).decode()


def _read_table(place: str) -> dict[str, object]:
    from ccagent.config.files import read_files

    return read_files(place).table


def _check_unchanged(old: ControlSetup, new: ControlSetup) -> None:
    for key in ("cluster", "hostname"):
        if old.table.get(key) != new.table.get(key):
            raise ConfigurationError(f"{key}: a change needs a restart")
    for key in ("state_directory", "socket"):
        if getattr(old.settings, key) != getattr(new.settings, key):
            name = key.replace("_", "-")
            raise ConfigurationError(f"controls.{name}: a change needs a restart")


def _take_lock(directory: str) -> Lock:
    """Lock a state directory for one service. Raise CcagentError if it is locked."""
    try:
        make_directory(directory)
    except (OSError, NotPermittedError) as error:
        raise ConfigurationError(f"controls.state-directory: {error}") from error
    return Lock(os.path.join(directory, _LOCK), "controls.state-directory")
