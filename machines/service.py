"""The service `ccagent migfra run`: its parts, its threads, signals and reloads."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from ccagent import log
from ccagent.agents.fast.session.answers import AnswerQueue
from ccagent.agents.fast.session.session import FastSession
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, say
from ccagent.machine.own_memory import share_heap
from ccagent.machines.framework import Framework
from ccagent.machines.hypervisor import Hypervisor, open_connection
from ccagent.machines.journal import TaskJournal
from ccagent.machines.locating import MachineLocator
from ccagent.machines.migration import Migrations
from ccagent.machines.operations import Operations
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.pscom import PscomHooks
from ccagent.machines.settings import load_setup
from ccagent.net.mqtt_broker import MqttOptions
from ccagent.service.audit_file import AuditFile
from ccagent.service.lock import lock_directory
from ccagent.service.notify import Notifier
from ccagent.service.signals import ignore_signals, release_blocked
from ccagent.transports.mqtt.settings import fill_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ccagent.machine.node import Node
    from ccagent.machines.settings import MigfraSettings, MigfraSetup

_LOCK = "migfra.lock"
_NAME = "migfra"
_STOP_WITHIN = 5.0


class FrameworkParts(NamedTuple):
    """A framework with what it owns."""

    framework: Framework
    journal: TaskJournal
    hooks: PscomHooks
    locator: MachineLocator


def build_framework(
    node: Node,
    settings: MigfraSettings,
    answers: AnswerQueue,
    open_connection: Callable[[str], Any] = open_connection,
) -> FrameworkParts:
    """Build a framework. No connection to libvirt is opened before a task needs one."""
    here = Hypervisor(settings.hypervisor, node.hostname, open_connection)
    destinations = {
        name: Hypervisor(uri, name, open_connection)
        for name, uri in settings.allow.destinations.items()
    }
    journal = TaskJournal(settings.state_directory)
    hooks = PscomHooks(settings.topic, settings.pscom_form, settings.pscom_limit.seconds)
    operations = Operations(node, settings, here, destinations)

    def find(name: str) -> int:
        return operations.find_process(name) if framework.policy.allows_machine(name) else 0

    locator = MachineLocator(settings.topic, node.hostname, find)
    framework = Framework(
        node,
        settings,
        journal=journal,
        answers=answers,
        audit=AuditFile(os.path.join(settings.state_directory, "audit.jsonl")),
        operations=operations,
        migrations=Migrations(settings, operations, hooks, locator.ask),
        hooks=hooks,
        locator=locator,
    )
    return FrameworkParts(framework, journal, hooks, locator)


class MigfraService:
    """Runs until SIGTERM or SIGINT. SIGHUP reads the policy again."""

    def __init__(self, load: Callable[[], MigfraSetup]) -> None:
        self._load = load
        self._setup = load()
        self._due = threading.Event()
        self._stopping = False
        self._reload = False
        self._notifier = Notifier()

    def handle_signals(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP, from now until the process ends."""

        def on_signal(number: int, frame: FrameType | None) -> None:
            del frame
            if number == signal.SIGHUP:
                self._reload = True
            else:
                self._stopping = True
            self._due.set()

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, on_signal)
        release_blocked()

    def run(self) -> None:
        """Run until stopped. Raise CcagentError if the start fails."""
        share_heap()
        settings = self._setup.settings
        lock = lock_directory(settings.state_directory, _LOCK, "migfra.state-directory")
        node = self._setup.make_node()
        try:
            with closing(
                AnswerQueue(settings.state_directory, node.cluster, node.hostname, _NAME)
            ) as answers:
                parts = build_framework(node, settings, answers)
                with closing(parts.journal):
                    self._serve(node, parts, answers)
        finally:
            ignore_signals()
            lock.release()
            self._notifier.close()

    def _serve(self, node: Node, parts: FrameworkParts, answers: AnswerQueue) -> None:
        settings, framework = self._setup.settings, parts.framework
        client = fill_topic(settings.client_id, node.cluster, node.hostname, _NAME, "")
        options = MqttOptions(settings.broker(), client, None, qos_hint=", which FAST needs")
        session = FastSession(options, framework, answers, parts.journal, _NAME)
        framework.on_answer = session.look
        for part in (parts.hooks, parts.locator):
            part.publish, part.look = session.publish, session.look
        framework.recover()
        thread = threading.Thread(target=session.run, name="migfra session", daemon=True)
        thread.start()
        allow = settings.allow
        say(
            f"migfra: started: {', '.join(allow.tasks) or 'no task'} of {len(allow.machines)}"
            f" patterns of machines; {len(allow.destinations)} destinations"
        )
        self._notifier.ready(settings.url)
        watchdog = self._notifier.watchdog
        while not self._stopping:
            self._due.wait(watchdog / 2 if watchdog is not None else None)
            self._due.clear()
            self._notifier.alive()
            if self._reload:
                self._reload = False
                self._read_again(framework)
        self._notifier.stopping()
        session.close()
        thread.join(_STOP_WITHIN)
        # Threads that wait for libvirt end with the process. The next one finds out what is true.
        say("migfra: stopped")

    def _read_again(self, framework: Framework) -> None:
        """Apply a changed policy. Other keys need a restart."""
        self._notifier.reloading()
        try:
            settings = self._load().settings
            old = self._setup.settings
            if settings.allow.destinations.items() - old.allow.destinations.items():
                raise ConfigurationError("migfra.allow.destinations: a change needs a restart")
        except CcagentError as error:
            logger.error("migfra: the policy is not read again, the old one stays: %s", error)
        else:
            framework.policy = MachinePolicy(settings)
            say("migfra: policy read again")
        self._notifier.ready(self._setup.settings.url)


def run_service(path: str | None, verbosity: int) -> None:
    """Run the service until SIGTERM. Raise CcagentError."""
    log.configure(verbosity)

    def load() -> MigfraSetup:
        setup = load_setup(path)
        log.configure(verbosity, *log.read_choice(setup.table))
        return setup

    service = MigfraService(load)
    service.handle_signals()
    service.run()
