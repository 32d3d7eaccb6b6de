"""Controls `config.*`: ccagent's running configuration, and the keys in the policy.

A new value is checked like by `ccagent config check`, in a separate process, and written to the
file of overrides, which override the configuration files. A reload of the daemon applies it. The
file is below /run: a boot deletes it, and the configuration files are in effect again.
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
from ccagent.controls.settings import CONFIG_KEY, OVERRIDES
from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    ControlError,
    NotHereError,
    NotPermittedError,
    ProgramError,
    UnparsableError,
)
from ccagent.log import logger
from ccagent.machine.interpreter import python
from ccagent.machine.node import read_trusted
from ccagent.service.private_directories import make_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node


_LOCK = "ccagent.lock"
_CHECK_WITHIN = 10.0
_OUTPUT = 64 * 1024
_LARGEST = 256 * 1024


class Overrides(msgspec.Struct, frozen=True, rename="kebab"):
    """The content of the file: keys of agents, and the agents that are off."""

    agents: dict[str, dict[str, Any]] = {}
    agents_off: tuple[str, ...] = ()


def split_key(name: str) -> tuple[str, bool]:
    """Return the agent in a control's name, and whether the control is its cadence."""
    match = CONFIG_KEY.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return match[1], bool(match[2])


def read_key(table: dict[str, Any], overrides: Overrides, name: str) -> str:
    """Return the value of a key in effect; "" if it has none.

    The cadence of an agent that is off is what it will be.
    """
    agent, is_cadence = split_key(name)
    if is_cadence:
        overrides = Overrides(overrides.agents)
    agents = as_table(with_overrides(table, overrides)["agents"])
    if is_cadence:
        return str(as_table(agents.get(agent)).get("every", ""))
    return "1" if agent in agents else "0"


def with_key(table: dict[str, Any], overrides: Overrides, name: str, value: str) -> Overrides:
    """Return overrides with a new value of a key. A value equal to the files' is omitted."""
    agent, is_cadence = split_key(name)
    configured = as_table(table.get("agents"))
    over = dict(overrides.agents.get(agent, {}))
    off = {*overrides.agents_off}
    if is_cadence:
        over.pop("every", None)
        if value and as_table(configured.get(agent)).get("every") != value:
            over["every"] = value
    elif value == "0" and agent in configured:
        off.add(agent)
    else:
        off.discard(agent)
    agents = {key: each for key, each in overrides.agents.items() if key != agent}
    # An agent that is only here is on, even without a key.
    is_needed = bool(over) if agent in configured else is_cadence or value == "1"
    if is_needed:
        agents[agent] = over
    return Overrides(agents, tuple(sorted(off)))


def with_overrides(table: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the table of the files, updated with the overrides."""
    agents = dict(as_table(table.get("agents")))
    for name, over in overrides.agents.items():
        agents[name] = as_table(agents.get(name)) | over
    for name in overrides.agents_off:
        agents.pop(name, None)
    return table | {"agents": agents}


def read_overrides(path: str) -> Overrides:
    """Return the content of the file; nothing without the file. Raise CcagentError."""
    try:
        _, content = read_trusted(path, path.lstrip("/"), _LARGEST)
        return msgspec.toml.decode(content, type=Overrides)
    except NotHereError:
        return Overrides()
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnparsableError(f"{path}: {error}") from error


def write_overrides(path: str, overrides: Overrides) -> None:
    """Write the file atomically. Every user may read it. Raise CcagentError."""
    from ccagent.config.defaults import toml

    lines = [f"agents-off = {toml([*overrides.agents_off])}"]
    for name, table in overrides.agents.items():
        lines.append(f"[agents.{toml(name)}]")
        lines += [f"{toml(key)} = {toml(value)}" for key, value in table.items()]
    try:
        make_directory(os.path.dirname(path), 0o755)
        replace_file(path, ("\n".join(lines) + "\n").encode(), 0o644)
    except OSError as error:
        raise NotPermittedError(f"{path}: {error.strerror}") from error


def apply_overrides(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table with the overrides. If they can't be read, log a warning and omit them."""
    path = str(as_table(table.get("controls")).get("overrides", OVERRIDES))
    try:
        return with_overrides(table, read_overrides(path))
    except CcagentError as error:
        logger.warning("overrides are not used: %s", error)
        return table


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
        program = "from ccagent.controls.config_keys import main; main()"
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
