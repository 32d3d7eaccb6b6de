"""Sources of the text of job_stats: files, `lctl`, or a recorded dump."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccagent.machine.node import Node

KINDS = ("mdt", "obdfilter")
DIRECTORY = "proc/fs/lustre"

Source = Literal["auto", "files", "lctl"]

_OUTPUT_LIMIT = 4 * 1024**3
_PARAMETERS_LIMIT = 64 * 1024 * 1024
_LISTING_LIMIT = 1024 * 1024
_NAME = re.compile(r"(mdt|obdfilter)\.([^\s=]{1,255}?)\.job_stats=?")


class Text(NamedTuple):
    """The text of one target, in pieces. name, kind: empty if the text names them."""

    name: str
    kind: str
    chunks: Iterator[bytes]


class JobstatsSource:
    """Reads the texts of this server's targets, each with a time limit."""

    def __init__(self, source: Source, lctl: str, recorded: str, time_limit: float) -> None:
        self.without_targets = (
            f"{recorded}: has no job_stats: is it a dump of `lctl get_param *.*.job_stats`?"
            if recorded
            else "no targets with job_stats on this server"
        )
        """Error message if no text had a target."""
        self._source = source
        self._lctl = lctl
        self.recorded = recorded
        self._time_limit = time_limit

    def texts(self, node: Node, errors: list[CcagentError]) -> Iterator[Text]:
        """Yield the text of each target. Append errors of listing to `errors`.

        A text may raise CcagentError during reading. Raise NotHereError without Lustre and lctl, or
        without the dump; NotPermittedError for an unreadable dump.
        """
        if self.recorded:
            path = self.recorded.lstrip("/")
            node.owner(path)
            if not node.is_readable(path):
                raise NotPermittedError(f"{self.recorded}: not permitted to read it")
            yield Text("", "", node.pieces(path))
            return
        found = False
        if self._source != "lctl":
            for kind, name, readable in self._files(node, errors):
                found = True
                path = f"{DIRECTORY}/{kind}/{name}/job_stats"
                if readable:
                    yield Text(name, kind, node.chunks(path, time_limit=self._time_limit))
                else:
                    yield self._by_lctl(node, kind, name)
        if not found and self._source != "files":
            for kind, name in self._list(node, errors):
                yield self._by_lctl(node, kind, name)

    def _files(self, node: Node, errors: list[CcagentError]) -> Iterator[tuple[str, str, bool]]:
        """Yield kind and name of each target with a file, and whether the file is readable."""
        for kind in KINDS:
            try:
                names = node.list(f"{DIRECTORY}/{kind}")
            except NotHereError:
                continue
            except CcagentError as error:
                errors.append(error)
                continue
            for name in sorted(names):
                path = f"{DIRECTORY}/{kind}/{name}/job_stats"
                try:
                    node.owner(path)
                except NotHereError:
                    continue
                except CcagentError as error:
                    errors.append(error)
                    continue
                yield kind, name, self._source == "files" or node.is_readable(path)

    def _list(self, node: Node, errors: list[CcagentError]) -> Iterator[tuple[str, str]]:
        """Yield the targets that lctl lists. lctl fails for a kind that the server lacks."""
        for kind in KINDS:
            command = [self._lctl, "list_param", f"{kind}.*.job_stats"]
            try:
                output = node.run(command, time_limit=self._time_limit, output_limit=_LISTING_LIMIT)
            except NotHereError as error:
                raise NotHereError(
                    f"no Lustre server here: neither /{DIRECTORY}/{{{','.join(KINDS)}}} nor the "
                    f"program {self._lctl}"
                ) from error
            except ProgramError as error:
                if "No such file" not in str(error):
                    errors.append(error)
                continue
            except NotPermittedError as error:
                errors.append(error)
                continue
            for line in output.decode("utf-8", "replace").splitlines():
                match = _NAME.fullmatch(line.strip())
                if match is not None:
                    yield match[1], match[2]

    def _by_lctl(self, node: Node, kind: str, name: str) -> Text:
        command = [self._lctl, "get_param", f"{kind}.{name}.job_stats"]
        chunks = node.stream(command, time_limit=self._time_limit, output_limit=_OUTPUT_LIMIT)
        return Text(name, kind, chunks)


def run_until_failure(
    node: Node, command: Sequence[str], time_limit: float, errors: list[str]
) -> bytes | None:
    """Return the output of a program, up to a failure; None if the program is missing.

    A failure adds a message to `errors`, unless a parameter is missing.
    """
    output = bytearray()
    try:
        for part in node.stream(command, time_limit=time_limit, output_limit=_PARAMETERS_LIMIT):
            output += part
    except NotHereError:
        return None
    except CcagentError as error:
        if "No such file" not in str(error):
            errors.append(str(error))
    return bytes(output)
