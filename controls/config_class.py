"""Controls `config.*`: ccagent's running configuration, and the keys in the policy.

A new value is checked like by `ccagent config check`, in a separate process, and written to the
overrides. A reload of the daemon applies it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ccagent.config.files import read_files
from ccagent.config.settings import as_table, is_table
from ccagent.controls.control import NODE_DEVICE, Control, ControlClass, Feature
from ccagent.controls.overrides import (
    Overrides,
    read_key,
    read_overrides,
    split_key,
    with_key,
    with_overrides,
    write_overrides,
)
from ccagent.errors import ConfigurationError, ControlError, ProgramError
from ccagent.machine.interpreter import python

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node


_LOCK = "ccagent.lock"
_CHECK_WITHIN = 10.0
_OUTPUT = 64 * 1024


class ConfigSource:
    """The daemon's configuration: the files at `path`, and the overrides."""

    change_lock: ClassVar[threading.Lock] = threading.Lock()
    """Held from reading until writing the overrides: they hold the keys of all controls."""

    def __init__(self, node: Node, path: str, overrides: str) -> None:
        self.node = node
        self.path = path
        self.overrides = overrides

    def read_table(self) -> dict[str, Any]:
        """Return the table of the files. Raise CcagentError."""
        return read_files(self.path).table

    def document(self) -> str:
        """Return the running configuration as JSON, without secrets and queries of URLs."""
        table = with_overrides(self.read_table(), read_overrides(self.overrides))
        return msgspec.json.encode(_public(table)).decode()

    def check(self, overrides: Overrides) -> None:
        """Raise ControlError if the configuration is invalid with these overrides."""
        program = "from ccagent.controls.config_class import main; main()"
        command = [*python(program), self.path, msgspec.json.encode(overrides).decode()]
        try:
            self.node.run(command, time_limit=_CHECK_WITHIN, output_limit=_OUTPUT)
        except ProgramError as error:
            raise ControlError(f"config: refused by the check: {error}") from error

    def reload(self) -> None:
        """Reload the daemon. Raise ControlError if that fails."""
        directory = str(self.read_table().get("lock-directory", ""))
        if not directory:
            raise ControlError("config: no lock-directory: can't find the daemon to reload it")
        pid = _holder(os.path.join(directory, _LOCK))
        if not pid:
            return  # the daemon does not run: it reads the overrides at its start
        try:
            os.kill(pid, signal.SIGHUP)
        except OSError as error:
            raise ControlError(f"config: reload of process {pid}: {error.strerror}") from error


class ConfigFeature(Feature):
    """One key of the configuration."""

    is_quick = False

    def __init__(self, source: ConfigSource, name: str) -> None:
        agent, is_cadence = split_key(name)
        what = f"Cadence of the agent {agent}" if is_cadence else f"Whether the agent {agent} runs"
        self._source = source
        self.control = Control(
            "config", name.removeprefix("config."), "node", "choice" if is_cadence else "boolean",
            what, is_writable=True,
        )  # fmt: skip
        self.devices = (NODE_DEVICE,)

    def read(self, device: str) -> str:
        """Return the value in effect. Raise CcagentError."""
        del device
        overrides = read_overrides(self._source.overrides)
        return read_key(self._source.read_table(), overrides, self.control.full_name)

    def write(self, device: str, text: str) -> None:
        """Check, write the overrides, reload the daemon. Raise CcagentError."""
        del device
        source = self._source
        with source.change_lock:
            overrides = read_overrides(source.overrides)
            table = source.read_table()
            agent, is_cadence = split_key(self.control.full_name)
            if is_cadence and read_key(table, overrides, f"config.agents.{agent}") == "0":
                raise ControlError(f"config: the agent {agent} does not run")
            new = with_key(table, overrides, self.control.full_name, text)
            source.check(new)
            write_overrides(source.overrides, new)
        source.reload()


class ConfigControls(ControlClass):
    """The keys in the policy."""

    category = "config"
    needs: ClassVar[str] = 'a rule [controls.allow."config.agents.NAME.every"] in the policy'

    def __init__(self, source: ConfigSource, names: Iterable[str]) -> None:
        self._source = source
        self._names = [name for name in names if name.startswith("config.")]

    def find_features(self, node: Node) -> Iterable[Feature]:
        """Return the controls of these keys."""
        del node
        return [ConfigFeature(self._source, name) for name in self._names]


def _holder(path: str) -> int:
    """Return the pid of the process that holds a lock; 0 for none. Raise ControlError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ControlError(f"config: {path}: {error.strerror}") from error
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return 0
        text = os.read(descriptor, 20).strip()
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() else 0


def _public(value: object, key: str = "") -> object:
    """Return a table without possible secrets in URLs."""
    if is_table(value):
        return {name: _public(each, name) for name, each in as_table(value).items()}
    if key == "url" and isinstance(value, str):
        from ccagent.config.options import public_url

        return public_url(value)
    return value


def main() -> None:
    """Check the file argv[1] with the overrides argv[2] (JSON). Status 2 and a line on error."""
    from ccagent.config.configuration import check_files

    path, text = sys.argv[1:3]
    try:
        files = read_files(path)
        overrides = msgspec.json.decode(text, type=Overrides)
        check_files(files, with_overrides(files.table, overrides))
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
