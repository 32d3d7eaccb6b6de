"""The Prometheus endpoint of a daemon: start, exchange by a reload, end.

Its modules are imported only if a configuration has the table [exporter].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.config.configuration import Configuration
    from ccagent.exporter.service import ExporterService
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.machine.node import Node

_Names = tuple[str, str]


class ExporterSlot:
    """Manages the running exporter, if one is configured."""

    def __init__(self) -> None:
        self._running: ExporterService | None = None
        self._key: tuple[ExporterSettings, _Names] | None = None

    def prepare(self, configuration: Configuration, node: Node) -> ExporterService | None:
        """Build the exporter of a configuration, unless the same one runs already.

        Raise ConfigurationError for invalid settings, before any change.
        """
        key = _key_of(configuration, node)
        if key is None or (self._running is not None and key == self._key):
            return None
        from ccagent.exporter.service import ExporterService

        return ExporterService(key[0])

    def apply(
        self, prepared: ExporterService | None, configuration: Configuration, node: Node
    ) -> None:
        """Replace the running exporter by the prepared one, or end it if none is configured.

        The scrapes that run are answered.
        """
        key = _key_of(configuration, node)
        if prepared is None and key is not None and key == self._key:
            return
        before, self._running, self._key = self._running, prepared, key
        try:
            if prepared is not None:
                prepared.start(node, before)
            elif before is not None:
                before.retire()
        except Exception:  # noqa: BLE001 - agents sample whether anybody scrapes or not
            logger.exception("exporter: not exchanged: unforeseen error")

    def close(self) -> None:
        """End the running exporter."""
        running, self._running, self._key = self._running, None, None
        if running is None:
            return
        try:
            running.close()
        except Exception:  # noqa: BLE001 - the daemon ends, or starts another one
            logger.exception("exporter: unforeseen error while it was closed")


def _key_of(configuration: Configuration, node: Node) -> tuple[ExporterSettings, _Names] | None:
    """Return the settings and names of an exporter; None if none is configured."""
    if configuration.exporter is None:
        return None
    return configuration.exporter, (node.cluster, node.hostname)
