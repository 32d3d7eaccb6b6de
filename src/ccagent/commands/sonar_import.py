"""Conversion of Sonar's configuration to one of ccagent, with notes on unsupported settings.

Source: Sonar 0.19, doc/HOWTO-DAEMON.md and doc/HOWTO-HTTP.md, with the defaults of its daemon. A
default of Sonar that differs from ccagent's is written out. The file is an ini file: lines are
blank, comments (`#`), `[section]` or `name = value`. A value may have quotes of three kinds,
without escapes.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.config.defaults import toml
from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import as_table
from ccagent.errors import ConfigurationError, UnparsableError
from ccagent.log import printable
from ccagent.machine.node import check_name

if TYPE_CHECKING:
    from collections.abc import Callable


LOGIN_FILE = "/etc/ccagent/password"
"""The file for a password, because configurations contain no passwords."""


_VOLUMES = {"K": 1024, "M": 1024**2, "G": 1024**3}


def _bool(value: str) -> bool:
    if value not in {"true", "false"}:
        raise ValueError("expected true or false")
    return value == "true"


def _count(value: str) -> int:
    if not value.isdecimal() or not value.isascii() or not 0 < int(value[:10]) < 10**9:
        raise ValueError(f"{value[:80]!r} is not a whole number from 1 to 999999999")
    return int(value)


def _volume(value: str) -> int:
    unit = _VOLUMES.get(value[-1], 1)
    return unit * _count(value if unit == 1 else value[:-1])


def _path(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value[:80]!r}: an absolute path is needed")
    return value


def _http_url(value: str) -> str:
    """Return a URL of HTTP. Sonar passes the value to curl, which needs no scheme."""
    scheme, separator, rest = value.partition("://")
    return f"{scheme.lower()}://{rest}" if separator else f"http://{value}"


def _duration(value: str) -> str:
    return str(Duration(value))


def _cadence(value: str) -> str:
    return str(Cadence(value))


def _strings(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _secret(_: str) -> str:
    return LOGIN_FILE


class Known(NamedTuple):
    """A key of Sonar.

    to: ccagent's keys, separated by blanks; empty if none exists. read: returns the value for
    ccagent; it raises ValueError or ConfigurationError for an invalid one. note: a loss, or a task
    for the user. only: the note is only for this value. section, name: the main name of a key with
    several names.
    """

    to: str = ""
    read: Callable[[str], Any] = str
    note: str = ""
    only: object = None
    section: str = ""
    name: str = ""


_DEBUGGING = "for debugging: `ccagent run -v`, `ccagent sample --once`"
_PASSWORD = f"passwords must be in files: write it to {LOGIN_FILE} and `chmod o=` that"
_OTHERS = "others must not be able to read that file: `chmod o=` it"

_SINKS = {
    ("kafka", "broker-address"): Known("sinks.kafka.url"),
    ("kafka", "remote-host"): Known(name="broker-address"),
    ("kafka", "rest-endpoint"): Known("sinks.kafka.url", _http_url),
    ("kafka", "http-proxy"): Known("sinks.kafka.proxy", _http_url),
    ("kafka", "rest-proxy"): Known(name="http-proxy"),
    ("kafka", "http-payload-limit"): Known("sinks.kafka.max-payload", _volume),
    ("kafka", "sending-window"): Known("sinks.kafka.sending-window", _duration),
    ("kafka", "timeout"): Known("outbox.max-age", _duration),
    ("kafka", "ca-file"): Known("sinks.kafka.ca-file", _path),
    ("kafka", "sasl-password"): Known("sinks.kafka.password-file", _secret, _PASSWORD),
    ("kafka", "sasl-password-file"): Known("sinks.kafka.password-file", _path, _OTHERS),
    ("http", "api-root"): Known("sinks.http.url", _http_url),
    ("http", "http-proxy"): Known("sinks.http.proxy", _http_url),
    ("http", "ca-file"): Known("sinks.http.ca-file", _path),
    ("http", "sending-window"): Known("sinks.http.sending-window", _duration),
    ("http", "timeout"): Known("outbox.max-age", _duration),
    ("http", "http-payload-limit"): Known(note="each envelope is a separate request"),
    ("http", "upload-password"): Known("sinks.http.password-file", _secret, _PASSWORD),
    ("http", "upload-password-file"): Known("sinks.http.password-file", _path, _OTHERS),
    ("directory", "data-directory"): Known("sinks.directory.url", _path),
}

_AGENTS = {
    ("sample", "cadence"): Known("agents.sample.every", _cadence),
    ("sample", "exclude-system-jobs"): Known("agents.sample.exclude-system-jobs", _bool),
    ("sample", "load"): Known(read=_bool, note="the load is always sampled", only=False),
    ("sample", "batchless"): Known("agents.sample.jobs-by-process-group", _bool),
    ("sample", "rollup"): Known("agents.sample.rollup", _bool),
    ("sample", "exclude-users"): Known("agents.sample.exclude-users", _strings),
    ("sample", "exclude-commands"): Known("agents.sample.exclude-commands", _strings),
    ("sample", "min-cpu-time"): Known("agents.sample.min-cpu-time", _duration),
    ("sysinfo", "cadence"): Known("agents.sysinfo.every", _cadence),
    ("sysinfo", "on-startup"): Known("agents.sysinfo.on-startup", _bool),
    ("sysinfo", "topo-svg-command"): Known(section="programs"),
    ("sysinfo", "topo-text-command"): Known(section="programs"),
    ("jobs", "cadence"): Known("agents.jobs.every", _cadence),
    ("jobs", "window"): Known(
        read=_duration, note="ccagent remembers sent jobs and needs no window"
    ),
    ("jobs", "uncompleted"): Known("agents.jobs.uncompleted", _bool),
    ("jobs", "incomplete"): Known(name="uncompleted"),
    ("jobs", "batch-size"): Known("agents.jobs.batch-size", _count),
    ("cluster", "cadence"): Known("agents.cluster.every", _cadence),
    ("cluster", "on-startup"): Known("agents.cluster.on-startup", _bool),
    ("cluster", "domain"): Known(note="names of nodes are sent as Slurm has them"),
}

KEYS = {
    ("global", "cluster"): Known("cluster", partial(check_name, "cluster")),
    ("global", "role"): Known(note="ccagent has no roles: only agents with a table run"),
    ("global", "master-if"): Known(note="ccagent has no roles: the master needs a separate file"),
    ("global", "lock-directory"): Known("lock-directory", _path),
    ("global", "lockdir"): Known(name="lock-directory"),
    ("global", "topic-prefix"): Known("topic-prefix", partial(check_name, "topic-prefix")),
    ("global", "hostname-only"): Known("hostname-only", _bool),
    **_SINKS,
    **_AGENTS,
    ("programs", "curl-command"): Known(note="no curl is needed"),
    ("programs", "sacct-command"): Known("agents.jobs.sacct", _path),
    ("programs", "scontrol-command"): Known("agents.jobs.scontrol agents.sample.scontrol", _path),
    ("programs", "sinfo-command"): Known("agents.cluster.sinfo agents.jobs.sinfo", _path),
    ("programs", "topo-svg-command"): Known("agents.sysinfo.topo-svg-command"),
    ("programs", "topo-text-command"): Known("agents.sysinfo.topo-text-command"),
    ("debug", "verbose"): Known(read=_bool, note=_DEBUGGING, only=True),
    ("debug", "oneshot"): Known(read=_bool, note=_DEBUGGING, only=True),
    ("debug", "time-limit"): Known(read=_duration, note=_DEBUGGING),
    ("debug", "output-delay"): Known(read=_duration, note=_DEBUGGING),
}
"""The keys by section and name."""


_LARGEST = 1024 * 1024
_ADDRESSES = {
    "kafka": {"broker-address", "rest-endpoint"},
    "http": {"api-root"},
    "directory": {"data-directory"},
}
"""Keys with the address of a sink, by section. Each section needs one of them."""

_REST_KEYS = {("kafka", key) for key in ("rest-endpoint", "http-proxy", "http-payload-limit")}
"""Keys of Kafka's REST proxy."""


class Imported(NamedTuple):
    """A configuration as TOML, and a note for each setting that is not carried over."""

    text: str
    notes: list[str]


def import_file(path: str) -> Imported:
    """Read and convert a file. Raise ConfigurationError with file, line and reason."""
    try:
        with open(path, "rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    if len(content) > _LARGEST:
        raise ConfigurationError(f"{path}: larger than {_LARGEST} bytes")
    try:
        return convert(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}: line {line}: not text in UTF-8") from error
    except (ConfigurationError, UnparsableError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def convert(text: str) -> Imported:
    """Convert the text of an ini file. Raise ConfigurationError or UnparsableError."""
    conversion = _Conversion(parse(text))
    table = conversion.table()
    notes = conversion.notes
    lines = ["# Made of Sonar's configuration by `ccagent config import`."]
    if notes:
        lines += ["#", "# What it could not carry over:", *(f"# - {note}" for note in notes)]
    return Imported("\n".join([*lines, "", *_write(table, ())]) + "\n", notes)


class _Conversion:
    """Converts the settings, and collects notes with their lines."""

    def __init__(self, settings: list[Setting]) -> None:
        self._notes: list[tuple[int, str]] = []
        self._found: dict[tuple[str, str], Setting] = {}
        for setting in settings:
            known = KEYS.get((setting.section, setting.name))
            if known is None:
                self._note(setting, "unknown to this version: left out")
                continue
            key = (known.section or setting.section, known.name or setting.name)
            if key in self._found:
                self._note(self._found[key], f"repeated in line {setting.line}; that line is used")
            self._found[key] = setting
        self._cadences = {section for section, name in self._found if name == "cadence"}

    @property
    def notes(self) -> list[str]:
        """Return the notes on settings that are not carried over, in the order of lines."""
        return [printable(note) for _, note in sorted(self._notes, key=lambda note: note[0])]

    def table(self) -> dict[str, Any]:
        """Return the tables of ccagent's configuration."""
        table: dict[str, Any] = {}
        for where, value in self._defaults():
            _put(table, where, value)
        for (section, name), setting in self._found.items():
            known = KEYS[section, name]
            value = _read(setting, known)
            if setting.value == "":
                self._note(setting, "empty: the default is used")
                continue
            used = self._used_keys(section, name, setting, known)
            if known.to and not used:
                continue
            if known.note and (known.only is None or value == known.only):
                self._note(setting, known.note)
            for key in used:
                _put(table, key, value)
        if "cluster" not in table:
            raise ConfigurationError("global.cluster is missing: is the file complete?")
        self._sinks(table)
        return table

    def _defaults(self) -> list[tuple[str, Any]]:
        """Return Sonar's defaults that differ from ccagent's."""
        found: list[tuple[str, Any]] = []
        if ("global", "hostname-only") not in self._found:
            self._note(
                None,
                "global.hostname-only is true by default; before Sonar 0.19 it was false: "
                "set hostname-only = false to keep the domain in node names",
            )
        if "sample" in self._cadences:
            found.append(("agents.sample.exclude-system-jobs", True))
        if "cluster" in self._cadences:
            found.append(("agents.cluster.on-startup", True))
        for sink in ("kafka", "http"):
            if not any((sink, address) in self._found for address in _ADDRESSES[sink]):
                continue
            found.append((f"sinks.{sink}.sending-window", "5m"))
            if (sink, "timeout") not in self._found:
                self._note(None, f"{sink}.timeout is 30m by default; here outbox.max-age is 7d")
        if "jobs" in self._cadences and ("jobs", "uncompleted") not in self._found:
            found.append(("agents.jobs.uncompleted", False))
        return found

    def _used_keys(self, section: str, name: str, setting: Setting, known: Known) -> list[str]:
        """Return ccagent's keys for configured agents and sinks. Add a note if there are none."""
        if (section, name) in _REST_KEYS and (("kafka", "broker-address") in self._found):
            self._note(setting, "for the REST proxy, but the broker's address is used")
            return []
        keys = known.to.split()
        used = [key for key in keys if _agent_of(key) in {"", *self._cadences}]
        if keys and not used:
            agent = _agent_of(keys[0])
            self._note(setting, f"without a cadence in [{agent}], {agent} does not run")
        return used

    def _sinks(self, table: dict[str, Any]) -> None:
        """Convert addresses to URLs. Without a sink, records are printed in Sonar's form."""
        sections = {section for section, _ in self._found} & set(_ADDRESSES)
        for section in sorted(sections):
            if not any((section, name) in self._found for name in _ADDRESSES[section]):
                raise ConfigurationError(
                    f"[{section}]: the address is missing: is the file complete?"
                )
        if not sections:
            table["sinks"] = {"stdout": {"url": "stdout:wrapped"}}
        sinks = as_table(table.get("sinks"))
        for name, sink in sinks.items():
            if "url" not in sink:
                raise ConfigurationError(f"[{name}]: the address is empty")
            if name != "directory" and "@" in sink["url"]:
                raise ConfigurationError(f"[{name}]: a login in the address: remove it")
            if name == "kafka":
                sink["url"] = _kafka_url(sink["url"], is_encrypted="ca-file" in sink)
            elif name == "directory":
                sink["url"] = f"dir:{sink['url']}"
        if not sinks:
            self._note(None, "no sink is left: add a table [sinks.NAME]")

    def _note(self, setting: Setting | None, reason: str) -> None:
        if setting is None:
            self._notes.append((_LARGEST, reason))
        else:
            self._notes.append((setting.line, f"{setting.place}: {reason}"))


def _read(setting: Setting, known: Known) -> Any:
    """Return a value for ccagent. Raise ConfigurationError for an invalid value."""
    try:
        # An empty value is the default, but each cluster has a name.
        return known.read(setting.value) if setting.value or known.to == "cluster" else ""
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{setting.place}: {error}") from error


def _kafka_url(address: str, *, is_encrypted: bool) -> str:
    """Return the URL for the address of a broker, or for the URL of the REST proxy."""
    if address.startswith(("http:", "https:")):
        return address.replace("http", "kprox", 1)
    return f"kafka{'s' if is_encrypted else ''}://{address}"


def _agent_of(key: str) -> str:
    """Return the agent of `agents.NAME.KEY`; empty for another key."""
    kind, _, rest = key.partition(".")
    return rest.partition(".")[0] if kind == "agents" else ""


def _put(table: dict[str, Any], where: str, value: Any) -> None:
    *tables, key = where.split(".")
    for name in tables:
        table = table.setdefault(name, {})
    table[key] = value


def _write(table: dict[str, Any], where: tuple[str, ...]) -> list[str]:
    """Return tables as lines of TOML, nested tables after their parents."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {toml(value)}" for key, value in values.items()]
    if where and values:
        lines = ["", f"[{'.'.join(where)}]", *lines]
    for key, value in table.items():
        lines += _write(as_table(value), (*where, key))
    return lines


ALIASES = {"ps": "sample", "slurm": "jobs", "paths": "programs"}
"""Older names of sections."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_QUOTES = "'\"`"
_BLANKS = " \t\r"


class Setting(NamedTuple):
    """One `name = value`, without quotes, with its line number."""

    section: str
    name: str
    value: str
    line: int

    @property
    def place(self) -> str:
        """The name of the setting in errors and notes."""
        return f"line {self.line}: {self.section}.{self.name}"


def parse(text: str) -> list[Setting]:
    """Parse an ini file.

    Raise UnparsableError with the line number, but without the line: it may contain a password.
    """
    found: list[Setting] = []
    section = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip(_BLANKS)
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = _section(line, number)
            continue
        name, equals, value = line.partition("=")
        name = name.strip(_BLANKS)
        if not equals or not _NAME.fullmatch(name):
            raise UnparsableError(f"line {number}: expected 'name = value'")
        if not section:
            raise UnparsableError(f"line {number}: {name}: before the first section")
        found.append(Setting(section, name, _value(value.strip(_BLANKS), number), number))
    return found


def _section(line: str, number: int) -> str:
    name = line[1:-1].strip(_BLANKS)
    if not line.endswith("]") or not _NAME.fullmatch(name):
        raise UnparsableError(f"line {number}: expected '[section]'")
    return ALIASES.get(name, name)


def _value(value: str, number: int) -> str:
    if not value:
        raise UnparsableError(f"line {number}: no value: an empty one is written as ''")
    if value[0] not in _QUOTES:
        return value
    if len(value) < 2 or value[-1] != value[0]:
        raise UnparsableError(f"line {number}: a quote {value[0]} that isn't closed")
    return value[1:-1]
