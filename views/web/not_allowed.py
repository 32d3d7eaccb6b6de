"""The error for pages that a viewer may not see."""

from __future__ import annotations

from ccagent.errors import CcagentError


class NotAllowedError(CcagentError):
    """The viewer may not see the page. The message is for the viewer."""
