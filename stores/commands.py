"""The commands `ccagent store`, one group for each store."""

from __future__ import annotations

from importlib import import_module

import click

from ccagent.commands.command_options import HelpfulGroup

_STORES = {
    "jobstats": "ccagent.stores.jobstats.commands",
    "metrics": "ccagent.stores.metrics.commands",
}
"""Stores and the modules of their commands. A module is imported when it is used."""


class StoreCommands(HelpfulGroup):
    """The group of the stores' commands."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the stores."""
        return sorted({*super().list_commands(ctx), *_STORES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the commands of a store."""
        if cmd_name not in _STORES:
            return super().get_command(ctx, cmd_name)
        found: click.Command = getattr(import_module(_STORES[cmd_name]), cmd_name)
        return found


@click.group(cls=StoreCommands)
def store() -> None:
    """Run a store for the data of agents."""
