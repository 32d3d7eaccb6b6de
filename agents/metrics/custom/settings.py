"""The tables `commands`, `files` and `expressions` of [agents.metrics]: metrics of the site."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from ccagent.config.duration import Duration
from ccagent.config.settings import Settings


class CommandSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.commands.NAME]."""

    command: Annotated[
        tuple[str, ...],
        Meta(description="program and arguments; prints line protocol", min_length=1),
    ]
    every: Annotated[Duration, Meta(description="interval of the program; 0s: every sample")] = (
        Duration("60s")
    )
    time_limit: Annotated[Duration, Meta(description="time after which the program is killed")] = (
        Duration("5s")
    )

    def problem(self) -> str:
        """Return a problem of the settings, empty if there is none."""
        if not self.command[0].startswith("/"):
            return f"command: {self.command[0]!r} is no absolute path"
        return "command: with a NUL" if any("\0" in word for word in self.command) else ""


class FileSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.files.NAME]."""

    path: Annotated[
        str, Meta(description="a file of line protocol, or a directory with files *.lp")
    ]
    max_age: Annotated[Duration, Meta(description="older files are skipped")] = Duration("5m")

    def problem(self) -> str:
        """Return a problem of the settings, empty if there is none."""
        is_path = self.path.startswith("/") and "\0" not in self.path
        return "" if is_path else f"path: {self.path!r} is no absolute path"


class ExpressionSettings(Settings, frozen=True, kw_only=True):
    """A table [agents.metrics.expressions.NAME]."""

    expression: Annotated[
        str, Meta(description="names of metrics, numbers, + - * / ( ), sum mean min max abs")
    ]
    unit: Annotated[
        str, Meta(description="unit of the result; a base unit is converted by the preset")
    ] = ""
    aggregation: Annotated[
        Literal["sum", "mean", "max"],
        Meta(description="how to combine values of parts to a node value"),
    ] = "mean"
