"""The service `ccagent migfra run`: its parts, its threads, signals and reloads."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from typing import TYPE_CHECKING

from ccagent.agents.fast.session import AnswerQueue, FastSession
from ccagent.config.configuration import keep_log
from ccagent.errors import CcagentError, ConfigurationError
from ccagent.log import logger, say
from ccagent.machine.own_memory import share_heap
from ccagent.machines.framework import Framework
from ccagent.machines.policy import MachinePolicy
from ccagent.machines.settings import load_setup
from ccagent.net.mqtt_broker import MqttOptions
from ccagent.service.instance import Notifier, lock_directory
from ccagent.service.signals import ReceivedSignals, WakeUp, ignore_signals, release_blocked
from ccagent.transports.mqtt import fill_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.machine.node import Node
    from ccagent.machines.settings import MigfraSetup

_LOCK = "migfra.lock"
_NAME = "migfra"
_STOP_WITHIN = 5.0
_LONGEST_WAIT = 3600.0


class MigfraService:
    """Runs until SIGTERM or SIGINT. SIGHUP reads the policy again."""

    def __init__(self, load: Callable[[], MigfraSetup]) -> None:
        self._load = load
        self._setup = load()
        self._wake_up = WakeUp()
        self._signals = ReceivedSignals()
        self._notifier = Notifier()

    def run(self) -> None:
        """Run until stopped. Raise CcagentError if the start fails."""
        share_heap()
        self._signals.receive(self._wake_up.writer, respects_nohup=False)
        release_blocked()
        settings = self._setup.settings
        lock = lock_directory(settings.state_directory, _LOCK, "migfra.state-directory")
        node = self._setup.make_node()
        try:
            with closing(
                AnswerQueue(settings.state_directory, node.cluster, node.hostname, _NAME)
            ) as answers:
                framework = Framework(node, settings, answers)
                with closing(framework.journal):
                    self._serve(node, framework, answers)
        finally:
            ignore_signals()
            lock.release()
            self._notifier.close()

    def _serve(self, node: Node, framework: Framework, answers: AnswerQueue) -> None:
        settings = self._setup.settings
        client = fill_topic(settings.client_id, node.cluster, node.hostname, _NAME, "")
        options = MqttOptions(settings.broker(), client, None, qos_hint=", which FAST needs")
        session = FastSession(options, framework, answers, framework.journal, _NAME)
        framework.on_answer = session.look
        requests = framework.requests
        requests.publish, requests.look = session.publish, session.look
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
        patience = _LONGEST_WAIT if watchdog is None else watchdog / 2
        while (numbers := self._signals.take()).isdisjoint((signal.SIGTERM, signal.SIGINT)):
            if signal.SIGHUP in numbers:
                self._read_again(framework)
            node.clock.wait(patience, self._wake_up.descriptor)
            self._wake_up.clear()
            self._notifier.alive()
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
    MigfraService(keep_log(lambda: load_setup(path), verbosity)).run()
