"""Identity of series: ids, and the clusters of their jobs.

An id is a UUID version 5 of `<target>:<entry_id>`, with a secret namespace for each format.
Source: the specification, "Ingest server". Each format has a separate namespace, because the same
text has different meanings in different formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from ccagent.agents.lustre.jobstats.entry import IdFormat
from ccagent.agents.lustre.jobstats.records import time_series_id
from ccagent.config.secret import secret_text
from ccagent.errors import ConfigurationError
from ccagent.machine.hostlist import expand
from ccagent.stores.jobstats.operations import file_system_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ccagent.stores.jobstats.settings import ClusterRuleSettings

MALFORMED = ""
"""Name for ids that match no format."""


class EntryMeaning(NamedTuple):
    """The parsed id of an entry. form: its format; empty without a match. parts: its fields."""

    form: str
    parts: dict[str, Any]


class EntryFormats:
    """The formats of entry ids, tried in order."""

    def __init__(self, formats: Iterable[str]) -> None:
        self._formats = [IdFormat(form) for form in formats]

    def parse(self, entry_id: str) -> EntryMeaning:
        """Return the format and the parts of an id."""
        for form in self._formats:
            parts = form.parse(entry_id)
            if parts is not None:
                return EntryMeaning(form.text, parts)
        return EntryMeaning(MALFORMED, {})

    @property
    def names(self) -> list[str]:
        """The formats, and MALFORMED."""
        return [*(form.text for form in self._formats), MALFORMED]


class ClusterRules:
    """The clusters of jobs, by the node or format of an entry's id, or by its file system.

    A node decides before a format, and a format before a file system.
    """

    def __init__(self, clusters: Mapping[str, ClusterRuleSettings]) -> None:
        self.text = msgspec.json.encode(clusters, order="sorted").decode()
        """The rules as text, for comparison."""
        self._nodes: dict[str, str] = {}
        self._formats: dict[str, str] = {}
        self._file_systems: dict[str, str] = {}
        for name, rule in clusters.items():
            self._nodes |= dict.fromkeys(expand(",".join(rule.nodes)), name)
            self._formats |= dict.fromkeys(rule.formats, name)
            self._file_systems |= dict.fromkeys(rule.file_systems, name)

    def find(self, target: str, node: str | None, form: str | None) -> str | None:
        """Return the name of a cluster; None without a rule that matches.

        A node's name may have a domain that the rule lacks.
        """
        node = node or ""
        return (
            self._nodes.get(node)
            or self._nodes.get(node.partition(".")[0])
            or self._formats.get(form or "")
            or self._file_systems.get(file_system_of(target))
        )


def make_series_id(namespace: UUID, target: str, entry_id: str) -> UUID:
    """Return the id of a series in a namespace."""
    return UUID(time_series_id(namespace.bytes, target, entry_id))


def read_namespaces(path: str) -> dict[str, UUID]:
    """Read namespaces from lines of a format and its UUID; `-` for ids that match no format.

    Raise ConfigurationError, whose message never contains a namespace.
    """
    found: dict[str, UUID] = {}
    for number, line in enumerate(secret_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            form, text = words
            found[MALFORMED if form == "-" else form] = UUID(text)
        except ValueError:
            raise ConfigurationError(
                f"{path}: line {number}: expected a format and a UUID"
            ) from None
    return found
