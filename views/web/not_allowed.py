"""The error of a page that a viewer may not see."""

from __future__ import annotations

from ccagent.errors import CcagentError


class NotAllowedError(CcagentError):
    """A viewer may not see a page: the message is for the viewer."""
