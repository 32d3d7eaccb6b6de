"""Metrics of the site from commands and files of line protocol, and from expressions.

A line is a metric with at most the tags `type`, `type-id`, `stype` and `stype-id`. Its time is
ignored: all values have the time of the sample.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, get_args

from msgspec import structs

from ccagent.agents.metrics.readers.base import (
    LONGEST_TAG,
    NODE,
    Gauge,
    Metric,
    Scope,
    ScopeType,
    is_sendable,
)
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.log import logger
from ccagent.machine.background import GRACE, PATIENCE, BackgroundCall, RepeatedCall, StopPipe
from ccagent.machine.gpu.vendor import parse_address
from ccagent.records.points import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from ccagent.agents.metrics.expressions import Expressions
    from ccagent.agents.metrics.outputs import Value
    from ccagent.agents.metrics.settings import CommandSettings, FileSettings, MetricsSettings
    from ccagent.config.duration import Duration
    from ccagent.machine.node import Node
    from ccagent.records.line_protocol import Line


TYPES: tuple[ScopeType, ...] = get_args(ScopeType)

_MOST_NAMES = 1000
_MOST_POINTS = 20_000
_MOST_COMPLAINTS = 10
_LONGEST_NUMBER = 9
_SHOWN = 60
_SCOPE_TAGS = frozenset({"type", "type-id", "stype", "stype-id"})


def parse_points(
    content: bytes, cluster: str, hostname: str, complain: Callable[[str], None]
) -> Iterator[Gauge]:
    """Yield the values of lines in UTF-8. Report each bad line to `complain` and skip it.

    A line may name only this cluster and this host. Tags outside of a scope are dropped and
    reported.
    """
    from ccagent.records.line_protocol import decode_lines

    # Bytes that are not UTF-8 become surrogates; these make a line invalid.
    text = content.decode("utf-8", "surrogateescape")
    for line in decode_lines(text, complain=lambda error: complain(str(error))):
        try:
            yield _gauge(line, {"cluster": cluster, "hostname": hostname}, complain)
        except ValueError as error:
            complain(f"{line.measurement[:_SHOWN]}: {error}")


def _gauge(line: Line, own: dict[str, str], complain: Callable[[str], None]) -> Gauge:
    """Return the value of a line. Raise ValueError if it is invalid."""
    if line.category != "metric" or isinstance(line.value, bool | str):
        raise ValueError(f"{line.field[:_SHOWN]} is no metric, whose field is value=NUMBER")
    if NAME.fullmatch(line.measurement) is None or len(line.measurement) > LONGEST_TAG:
        raise ValueError("a metric's name has letters, digits and '_' only")
    for key, name in own.items():
        if line.tags.get(key, name) != name:
            raise ValueError(f"{key} {line.tags[key][:_SHOWN]!r} is not this one, {name!r}")
    more = line.tags.keys() - _SCOPE_TAGS - own.keys()
    if more:
        complain(
            f"{line.measurement}: tag {min(more)[:_SHOWN]!r} is dropped: it is not part of a scope"
        )
    return Gauge(line.measurement, float(line.value), _parse_scope(line.tags))


def _parse_scope(tags: dict[str, str]) -> Scope:
    """Return the scope of tags. Raise ValueError if they are no scope."""
    kind = tags.get("type", "node")
    if kind not in TYPES:
        raise ValueError(f"type {kind[:_SHOWN]!r} is none of {', '.join(TYPES)}")
    number = ""
    if kind != "node":
        number = tags.get("type-id", "")
        if kind == "accelerator":
            number = parse_address(number) or number
        elif not number.isascii() or not number.isdecimal() or len(number) > _LONGEST_NUMBER:
            raise ValueError(f"type {kind} needs a number as type-id, not {number[:_SHOWN]!r}")
    stype, stype_id = tags.get("stype", ""), tags.get("stype-id", "")
    if bool(stype) != bool(stype_id):
        raise ValueError("stype and stype-id go together")
    if kind == "accelerator" and not number:
        raise ValueError("type accelerator needs a type-id")
    for text in (number, stype, stype_id):
        if not is_sendable(text):
            raise ValueError(f"a tag cannot be sent: {text[:_SHOWN]!r}")
    return Scope(kind, number, stype, stype_id)


class CustomMetrics:
    """Metrics of commands and files. Each belongs to its first source.

    taken: names of other metrics.
    """

    def __init__(self, taken: Collection[str]) -> None:
        self.metrics: dict[str, Metric] = {}
        self._taken = taken

    def gauges(self, source: str, content: bytes, node: Node, errors: list[str]) -> list[Gauge]:
        """Return the values of a source. Rejected values are reported in `errors`.

        Node values come last: the store keeps the last value of a name.
        """
        complaints: list[str] = []
        found: dict[tuple[str, Scope], Gauge] = {}
        for gauge in parse_points(content, node.cluster, node.hostname, complaints.append):
            key = (gauge.metric, gauge.scope)
            problem = f"{gauge.metric}: two values of the same scope" if key in found else ""
            problem = problem or self._refusal(source, gauge)
            if problem:
                complaints.append(problem)
            elif len(found) == _MOST_POINTS:
                complaints = [f"more than {_MOST_POINTS} values: the rest is dropped", *complaints]
                break
            else:
                found[key] = gauge
        complaints = [*dict.fromkeys(complaints)]
        errors += [f"{source}: {complaint}" for complaint in complaints[:_MOST_COMPLAINTS]]
        if len(complaints) > _MOST_COMPLAINTS:
            errors.append(f"{source}: {len(complaints) - _MOST_COMPLAINTS} more complaints")
        return sorted(found.values(), key=lambda gauge: gauge.scope == NODE)

    def _refusal(self, source: str, gauge: Gauge) -> str:
        """Register the metric of a value. Return why the value is rejected; empty if accepted."""
        name, kind = gauge.metric, gauge.scope.type
        if name in self._taken:
            return f"{name}: a metric of ccagent has this name"
        metric = self.metrics.get(name)
        if metric is None:
            if len(self.metrics) >= _MOST_NAMES:
                return f"{name}: there are {_MOST_NAMES} metrics of commands and files already"
            self.metrics[name] = Metric(unit="", type=kind, description="", source=source)
        elif metric.source != source:
            return f"{name}: a metric of {metric.source}"
        elif metric.type == "node" != kind:
            self.metrics[name] = structs.replace(metric, type=kind)
        return ""


class Custom:
    """Reads `commands`, `files` and `expressions`.

    known: metrics of readers. Raise ConfigurationError for an invalid expression.
    """

    def __init__(self, settings: MetricsSettings, known: Mapping[str, Metric]) -> None:
        self._expressions: Expressions | None = None
        taken = dict(known)
        if settings.expressions:
            from ccagent.agents.metrics.expressions import Expressions

            is_open = bool(settings.commands or settings.files)
            self._expressions = Expressions(settings.expressions, known, is_open=is_open)
            taken |= self._expressions.metrics
        self._custom = CustomMetrics(taken)
        self._commands = CommandsReader(settings.commands, self._custom)
        self._files = FilesReader(settings.files, self._custom)

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics of expressions, and all metrics of commands and files seen so far."""
        if self._expressions is None:
            return self._custom.metrics
        return self._expressions.metrics | self._custom.metrics

    @property
    def operands(self) -> set[str]:
        """Metrics used in expressions."""
        if self._expressions is None:
            return set()
        return {name for names in self._expressions.operands.values() for name in names}

    def begin(self, node: Node) -> None:
        """Start the due commands. They run while readers read."""
        self._commands.begin(node)

    def collect(self, node: Node, *, waits: bool) -> list[Gauge]:
        """Return the values of files and commands. Errors are logged, rate-limited.

        waits: wait for running commands, because no later sample follows.
        """
        found = [*self._files.read(node), *self._commands.read(node, waits=waits)]
        for error in (*self._files.errors, *self._commands.errors):
            logger.warning("agent metrics: %s", error)
        return found

    def compute(self, values: Iterable[Value]) -> list[Value]:
        """Return the values of expressions, computed from all values of a sample."""
        return [] if self._expressions is None else self._expressions.values(values)

    def find_missing(self, seen: Iterable[str]) -> dict[str, set[str]]:
        """Return the operands missing in `seen`, by expression."""
        found: dict[str, set[str]] = {}
        if self._expressions is not None:
            here = set(seen)
            for name, operands in self._expressions.operands.items():
                found[name] = operands - here
                if not found[name]:
                    here.add(name)
        return found

    def close(self) -> None:
        """Stop running commands."""
        self._commands.close()


_OUTPUT_LIMIT = 1024 * 1024


class CommandsReader:
    """Runs commands in the background, each at most once at a time.

    errors: messages of the last reading.
    """

    def __init__(self, commands: dict[str, CommandSettings], metrics: CustomMetrics) -> None:
        self.errors: list[str] = []
        self._metrics = metrics
        self._commands = [_Command(name, settings) for name, settings in commands.items()]
        self._stop = StopPipe()

    def begin(self, node: Node) -> None:
        """Start the due commands."""
        self.errors = []
        for command in self._commands:
            command.begin(node, self._stop.descriptor, self.errors)

    def read(self, node: Node, *, waits: bool = False) -> list[Gauge]:
        """Return the values of finished commands; others follow in a later sample.

        waits: wait for all commands, because no later sample follows.
        """
        deadline = time.monotonic() + PATIENCE
        found: list[Gauge] = []
        for command in self._commands:
            patience = command.longest if waits else deadline - time.monotonic()
            output = command.call.result(patience, self.errors)
            if output is not None:
                found += self._metrics.gauges(command.name, output, node, self.errors)
        return found

    def close(self) -> None:
        """Stop the running commands."""
        self._stop.close(*(command.call for command in self._commands))


class _Command:
    """A command of the site, started at its interval."""

    def __init__(self, name: str, settings: CommandSettings) -> None:
        self.name = f"command {name}"
        self.longest = settings.time_limit.seconds + 2 * GRACE
        self.call: RepeatedCall[bytes] = RepeatedCall(self.name, settings.every.seconds)
        self._settings = settings

    def begin(self, node: Node, stop: int, errors: list[str]) -> None:
        def run() -> bytes:
            return node.run(
                self._settings.command,
                time_limit=self._settings.time_limit.seconds,
                output_limit=_OUTPUT_LIMIT,
                stop=stop,
            )

        self.call.begin(node.clock.time(), run, errors)


_SUFFIX = ".lp"
_LARGEST = 1024 * 1024
_MOST_FILES = 256
_PATIENCE = 1.0
"""Seconds that a sample waits for all files. Later samples do not wait for a hung file."""


def read_texts(node: Node, settings: FileSettings) -> tuple[bytes, list[str]]:
    """Read the file or all files of the directory: at most 1 MiB and 256 files.

    Return the content, and a message for each bad file of a directory, which is skipped. Raise
    CcagentError on failure.
    """
    path = settings.path.strip("/")
    try:
        names = node.list(path)
    except NotHereError:
        return read_text(node, path, _LARGEST, settings.max_age), []
    names = sorted(name for name in names if name.endswith(_SUFFIX) and name[0] != ".")
    errors: list[str] = []
    if len(names) > _MOST_FILES:
        errors.append(f"more than {_MOST_FILES} files: the rest is skipped")
    contents: list[bytes] = []
    room = _LARGEST
    for name in names[:_MOST_FILES]:
        try:
            content = read_text(node, f"{path}/{name}", room, settings.max_age)
        except CcagentError as error:
            errors.append(str(error))
            continue
        room -= len(content)
        contents.append(content)
    return b"".join(contents), errors


def read_text(node: Node, path: str, limit: int, max_age: Duration) -> bytes:
    """Read a complete and recent file. Raise CcagentError otherwise."""
    written, content = node.read_trusted(path, limit)
    age = node.clock.time() - written
    if age > max_age.seconds:
        raise UnparsableError(f"/{path}: written {age:.0f} s ago, which is over {max_age}")
    if -age > max_age.seconds:
        raise UnparsableError(f"/{path}: written {-age:.0f} s in the future")
    if content and not content.endswith(b"\n"):
        # An incomplete `123` may read as `12`.
        raise UnparsableError(f"/{path}: its last line has no end; is it being written?")
    return content


class FilesReader:
    """Reads the files of all tables. A hung network file system delays only its own files.

    errors: messages of the last reading.
    """

    def __init__(self, files: dict[str, FileSettings], metrics: CustomMetrics) -> None:
        self.errors: list[str] = []
        self._files = files
        self._metrics = metrics
        self._reading: dict[str, BackgroundCall[tuple[bytes, list[str]]]] = {}

    def read(self, node: Node) -> list[Gauge]:
        """Return the values of all files."""
        self.errors = []
        hanging = set(self._reading)
        for name, settings in self._files.items():
            if name not in hanging:
                self._begin(node, name, settings)
        deadline = time.monotonic() + _PATIENCE
        found: list[Gauge] = []
        for name, reading in [*self._reading.items()]:
            source = f"file {name}"
            patience = 0.0 if name in hanging else deadline - time.monotonic()
            if not reading.wait(patience):
                self.errors.append(f"{source}: hangs; skipped until it answers")
                continue
            del self._reading[name]
            if name in hanging:
                continue  # the content may be old
            try:
                content, problems = reading.checked_result()
            except CcagentError as error:
                self.errors.append(f"{source}: {error}")
                continue
            self.errors += [f"{source}: {problem}" for problem in problems]
            found += self._metrics.gauges(source, content, node, self.errors)
        return found

    def _begin(self, node: Node, name: str, settings: FileSettings) -> None:
        try:
            self._reading[name] = BackgroundCall(lambda: read_texts(node, settings), f"file {name}")
        except CcagentError as error:
            self.errors.append(str(error))
