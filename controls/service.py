"""The control service and its start: it answers requests, and restores changes.

One event loop answers, ends leases, and handles signals. It sleeps until work is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from typing import TYPE_CHECKING

import msgspec

from ccagent.config.configuration import keep_log
from ccagent.controls.changes import Changes, find_jobs
from ccagent.controls.control import Catalogue, find_features
from ccagent.controls.journal import Audit, Change, Entry, Journal
from ccagent.controls.local_socket import BoundedCalls, LocalSocket
from ccagent.controls.messages import encode_line
from ccagent.controls.policy import Policy
from ccagent.controls.responder import Responder
from ccagent.controls.settings import (
    ControlSetup,
    ControlsSettings,
    all_senders,
    load_setup,
    standard_classes,
)
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    EncodingError,
    ProgramError,
)
from ccagent.log import logger, printable, say
from ccagent.machine.node import Node, read_host_name
from ccagent.records.line_protocol import Line
from ccagent.senders import SenderTable
from ccagent.service.instance import Notifier, lock_directory
from ccagent.service.signals import ignore_signals, release_blocked

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ccagent.controls.config_keys import ConfigSource
    from ccagent.controls.nats_requests import NatsRequests
    from ccagent.net.signatures import SignatureCheck


_LOCK = "control.lock"
_JOBS_EVERY = 5.0
_STOP_WITHIN = 10.0
_AFTER_AN_ERROR = 1.0
_RECOVER_WITHIN = 30.0
_LONGEST_WAIT = 60.0
"""Seconds between checks of the host name."""

_SECOND = 10**9


class ControlService:
    """Runs until stopped. `load` returns the configuration, at the start and at each reload."""

    def __init__(self, load: Callable[[], ControlSetup], node: Node | None = None) -> None:
        self._load = load
        self._setup = load()
        self._node = node or self._setup.make_node()
        self._loop = asyncio.new_event_loop()
        self._due = asyncio.Event()
        self._stopping = False
        self._reload = False
        self._notifier = Notifier()
        self._calls = BoundedCalls()
        self._classes = standard_classes()
        """Kept at a reload: the one of NVML keeps its process."""
        self._requests: NatsRequests | None = None
        self._requests_task: asyncio.Task[None] | None = None
        self._signatures: SignatureCheck | None = None
        self._senders = SenderTable()
        self._started = time.time()
        self._host = read_host_name()

    def handle_signals(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP, from now until the process ends."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP:
                self._reload = True
            else:
                self._stopping = True
            self._loop.call_soon_threadsafe(self._due.set)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_signal)
        release_blocked()

    def run(self) -> None:
        """Run until stopped. Raise CcagentError if the start fails."""
        lock = lock_directory(
            self._setup.settings.state_directory, _LOCK, "controls.state-directory"
        )
        try:
            self._build()
            self._loop.run_until_complete(self._serve())
        finally:
            ignore_signals()
            lock.release()
            self._notifier.close()

    async def _serve(self) -> None:
        settings = self._setup.settings
        await self._bounded(lambda: self._changes.recover(self._policy.allows), _RECOVER_WITHIN)
        self._local = LocalSocket(settings.socket, self._responder, self._calls)
        await self._local.start()
        self._connect()
        try:
            say(f"controls: started: {self._summary()}")
            self._notifier.ready(self._summary())
            while not self._stopping:
                await self._try_turn()
        finally:
            self._notifier.stopping()
            self._local.close()
            await self._end()

    def _build(self) -> None:
        directory = self._setup.settings.state_directory
        self._journal = Journal(directory)
        self._audit = Audit(directory, self._node.clock.time, self._announce)
        self._catalogue = self._list_machine()
        self._changes = Changes(self._node, self._catalogue, self._journal, self._audit)
        self._arrange()

    def _arrange(self) -> None:
        """Create the objects that depend only on the configuration."""
        settings = self._setup.settings
        self._policy = Policy(settings)
        keys = frozenset(
            each.removeprefix("key:") for each in all_senders(settings) if each.startswith("key:")
        )
        if keys:
            from ccagent.net.signatures import SignatureCheck

            self._signatures = self._signatures or SignatureCheck(self._started, keys)
        if self._signatures is not None:
            self._signatures.keys = keys  # used signatures stay used after a reload
        self._responder = Responder(
            self._node,
            settings,
            policy=self._policy,
            catalogue=self._catalogue,
            changes=self._changes,
            audit=self._audit,
            configuration=lambda: self._config_source().document(),
            senders=self._senders,
        )

    def _connect(self) -> None:
        """Start to keep a connection with the current settings."""
        settings = self._setup.settings
        if self._requests is not None and self._requests_task is not None:
            self._requests_task.cancel()
            self._requests = self._requests_task = None
        if not settings.url:
            return
        # Without a server the library is not needed.
        from ccagent.controls.nats_requests import NatsRequests

        self._requests = NatsRequests(settings, self._responder, self._signatures, self._calls)
        self._requests_task = self._loop.create_task(self._requests.run())

    def _list_machine(self) -> Catalogue:
        settings = self._setup.settings
        classes = [*self._classes]
        if any(name.startswith("config.") for name in settings.allow):
            from ccagent.controls.config_keys import ConfigControls

            classes.append(ConfigControls(self._config_source(), settings.allow))
        return Catalogue(find_features(self._node, classes))

    async def _try_turn(self) -> None:
        """Do due work. Only a new host name ends the service."""
        try:
            await self._turn()
        except ProgramError:
            raise
        except Exception:  # noqa: BLE001 - nobody foresaw it, and leases end all the same
            logger.exception("controls: the end of leases failed and continues")
            await asyncio.sleep(_AFTER_AN_ERROR)

    async def _turn(self) -> None:
        self._notifier.alive()
        self._notice_name()
        if self._reload:
            self._reload = False
            await self._read_again()
        jobs = find_jobs(self._node) if self._changes.has_jobs else frozenset[int]()
        for change, reason in self._changes.find_due(jobs):
            await self._restore(change, reason)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._due.wait(), self._patience())
        self._due.clear()

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
        return min(times)

    async def _restore(self, change: Change, by: str) -> None:
        await self._bounded(
            lambda: self._changes.restore(change, by), self._setup.settings.time_limit.seconds
        )

    async def _bounded(self, function: Callable[[], object], seconds: float) -> None:
        """Call a function in a thread that is abandoned after the time limit. Log errors."""
        try:
            with contextlib.suppress(TimeoutError):
                await self._calls.call(function, seconds)
        except CcagentError as error:
            logger.error("controls: %s", error)
        except Exception:  # noqa: BLE001 - the other values are put back all the same
            logger.exception("controls: putting a value back failed")

    async def _read_again(self) -> None:
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
        self._catalogue = await self._calls.call(self._list_machine, None)
        self._changes.catalogue = self._catalogue
        self._arrange()
        self._local.responder = self._responder
        if self._requests is None or _connection_of(setup.settings) != _connection_of(old.settings):
            self._connect()
        else:
            self._requests.replace(setup.settings, self._responder, self._signatures)
        for change in reversed(self._changes.all()):
            if not self._policy.allows(change.control):
                await self._restore(change, "the policy no longer allows it")
        say(f"controls: configuration read again: {self._summary()}")
        self._notifier.ready(self._summary())

    async def _end(self) -> None:
        """Stop answering, then restore all changes."""
        self._changes.close()
        if self._requests is not None and self._requests_task is not None:
            self._requests_task.cancel()
            await asyncio.wait({self._requests_task}, timeout=_STOP_WITHIN)
        deadline = time.monotonic() + _STOP_WITHIN
        for change in reversed(self._changes.all()):
            if time.monotonic() > deadline:
                break
            await self._restore(change, "stop of the service")
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
        """Note a new lease, and send an event message for an audit entry. In any thread."""
        self._loop.call_soon_threadsafe(self._due.set)
        subject, requests = self._setup.settings.audit_subject, self._requests
        if not subject or requests is None:
            return
        tags = {
            "cluster": self._node.cluster, "hostname": self._node.hostname.partition(".")[0],
            "type": "node", "type-id": "0", "function": entry.action,
        }  # fmt: skip
        text = printable(msgspec.json.encode(entry).decode())
        line = Line("control", tags, "event", text, int(self._node.clock.time() * _SECOND))
        try:
            event = encode_line(line).encode()
        except EncodingError as error:  # the file and the log have the entry
            logger.warning("controls: no event message for an entry of the audit: %s", error)
        else:
            self._loop.call_soon_threadsafe(requests.send_event, subject, event)

    def _config_source(self) -> ConfigSource:
        from ccagent.controls.config_keys import ConfigSource

        return ConfigSource(self._node, self._setup.path, self._setup.settings.overrides)


def _check_unchanged(old: ControlSetup, new: ControlSetup) -> None:
    for key in ("cluster", "hostname"):
        if old.table.get(key) != new.table.get(key):
            raise ConfigurationError(f"{key}: a change needs a restart")
    for key in ("state_directory", "socket"):
        if getattr(old.settings, key) != getattr(new.settings, key):
            name = key.replace("_", "-")
            raise ConfigurationError(f"controls.{name}: a change needs a restart")


def _connection_of(settings: ControlsSettings) -> list[object]:
    """Return the settings that determine a connection."""
    keys = (
        "url", "subjects", "user", "password_file", "token_file", "nkey_file", "creds_file",
        "ca_file", "certificate_file", "key_file", "insecure", "allow_cleartext",
    )  # fmt: skip
    return [getattr(settings, key) for key in keys]


def run_service(path: str | None, verbosity: int) -> None:
    """Run the service until SIGTERM. Raise CcagentError."""
    load = keep_log(lambda: load_setup(path, needs_table=True), verbosity)
    service = ControlService(load)
    service.handle_signals()
    gc.collect()
    gc.freeze()  # the modules loaded now stay
    service.run()
