"""Checks of the table [controls] that need files and libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.controls.names import find_unknown_rules
from ccagent.controls.settings import all_senders
from ccagent.errors import ConfigurationError

if TYPE_CHECKING:
    from ccagent.controls.settings import ControlsSettings


def check_controls(settings: ControlsSettings) -> None:
    """Check login, TLS, signatures and names of controls. This needs files and libraries.

    Raise ConfigurationError if one is invalid.
    """
    problems = list(find_unknown_rules(settings.allow))
    if settings.url:
        from ccagent.net.nats_login import check_client

        try:
            check_client(settings)
        except ConfigurationError as error:
            problems += error.problems
    if any(each.startswith("key:") for each in all_senders(settings)):
        from ccagent.controls.signatures import missing_library

        problems += missing_library()
    if problems:
        raise ConfigurationError(*(f"controls.{problem}" for problem in problems))
