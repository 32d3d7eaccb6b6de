"""Conversion of Sonar's configuration to one of ccagent, with notes on unsupported settings.

Source: Sonar 0.19, doc/HOWTO-DAEMON.md, with the defaults of its daemon. A default of Sonar that
differs from ccagent's is written out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ccagent.commands.sonar_import import ini as sonar_ini
from ccagent.commands.sonar_import.keys import KEYS, LOGIN_FILE, Kind, Known
from ccagent.config.defaults import toml
from ccagent.config.duration import Cadence, Duration
from ccagent.config.settings import as_table
from ccagent.errors import ConfigurationError, UnparsableError
from ccagent.log import printable
from ccagent.machine.node import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 1024 * 1024
_ADDRESSES = {
    "kafka": {"broker-address", "rest-endpoint"},
    "http": {"api-root"},
    "directory": {"data-directory"},
}
"""Keys with the address of a sink, by section. Each section needs one of them."""

_REST_KEYS = {("kafka", key) for key in ("rest-endpoint", "http-proxy", "http-payload-limit")}
"""Keys of Kafka's REST proxy."""

_VOLUMES = {"K": 1024, "M": 1024**2, "G": 1024**3}


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
    conversion = _Conversion(sonar_ini.parse(text))
    table = conversion.table()
    notes = conversion.notes
    lines = ["# Made of Sonar's configuration by `ccagent config import`."]
    if notes:
        lines += ["#", "# What it could not carry over:", *(f"# - {note}" for note in notes)]
    return Imported("\n".join([*lines, "", *_write(table, ())]) + "\n", notes)


class _Conversion:
    """Converts the settings, and collects notes with their lines."""

    def __init__(self, settings: list[sonar_ini.Setting]) -> None:
        self._notes: list[tuple[int, str]] = []
        self._found: dict[tuple[str, str], sonar_ini.Setting] = {}
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
            if not self._is_used(section, name, setting, known):
                continue
            if known.note and (known.only is None or value == known.only):
                self._note(setting, known.note)
            if known.to:
                _put(table, known.to, value)
        if "cluster" not in table:
            raise ConfigurationError("global.cluster is missing: is the file complete?")
        self._sinks(table)
        return table

    def _defaults(self) -> list[tuple[str, Any]]:
        """Return Sonar's defaults that differ from ccagent's."""
        found: list[tuple[str, Any]] = []
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

    def _is_used(self, section: str, name: str, setting: sonar_ini.Setting, known: Known) -> bool:
        """Return whether the agent or sink of a key is configured. Add a note if not."""
        kind, _, rest = known.to.partition(".")
        agent = rest.partition(".")[0]
        if kind == "agents" and agent not in self._cadences:
            self._note(setting, f"without a cadence in [{agent}], {agent} does not run")
            return False
        if (section, name) in _REST_KEYS and (("kafka", "broker-address") in self._found):
            self._note(setting, "for the REST proxy, but the broker's address is used")
            return False
        return True

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

    def _note(self, setting: sonar_ini.Setting | None, reason: str) -> None:
        if setting is None:
            self._notes.append((_LARGEST, reason))
        else:
            self._notes.append((setting.line, f"{setting.place}: {reason}"))


def _read(setting: sonar_ini.Setting, known: Known) -> Any:
    """Return a value of the key's kind. Raise ConfigurationError for an invalid value."""
    try:
        if known.kind is Kind.NAME:
            return check_name(setting.name, setting.value)
        return _READERS[known.kind](setting.value) if setting.value else ""
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{setting.place}: {error}") from error


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


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"{value[:80]!r}: an absolute path is needed")
    return value


_READERS: dict[Kind, Callable[[str], Any]] = {
    Kind.TEXT: str,
    Kind.PATH: _absolute,
    Kind.BOOL: _bool,
    Kind.COUNT: _count,
    Kind.VOLUME: _volume,
    Kind.DURATION: lambda value: str(Duration(value)),
    Kind.CADENCE: lambda value: str(Cadence(value)),
    Kind.STRINGS: lambda value: [part.strip() for part in value.split(",") if part.strip()],
    Kind.SECRET: lambda _: LOGIN_FILE,
}


def _kafka_url(address: str, *, is_encrypted: bool) -> str:
    """Return the URL for the address of a broker, or for the URL of the REST proxy."""
    if address.startswith(("http:", "https:")):
        return address.replace("http", "kprox", 1)
    return f"kafka{'s' if is_encrypted else ''}://{address}"


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
