"""Time zones of pages: of the query, else of the viewer's cookie, else UTC."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.responses import RedirectResponse

if TYPE_CHECKING:
    from starlette.requests import Request

_COOKIE = "ccagent-zone"
"""Set by `static/live.js` to the zone of the browser, and by the choice on pages."""

_SECONDS = 365 * 86400
_NAME = re.compile(r"[A-Z][A-Za-z0-9_+-]{0,30}(?:/[A-Za-z0-9_+-]{1,30}){0,2}")
"""Names of IANA's zones. Other files beside them, such as `posix/Japan`, are unknown to browsers.

Slashes only separate parts, and no part contains a dot: a name stays below the zones' directory.
"""


class ShownZone(NamedTuple):
    """The time zone of a page. is_unknown: the query names another zone, which is unknown."""

    zone: tzinfo = UTC
    is_unknown: bool = False

    def describe(self, moment: float) -> str:
        """Return the name with the offset at a time: `Europe/Berlin (UTC+01:00)`."""
        if self.zone is UTC:
            return "UTC"
        offset = f"{datetime.fromtimestamp(moment, self.zone):%z}"
        return f"{self.zone} (UTC{offset[:3]}:{offset[3:5]})"


@lru_cache(maxsize=128)
def find_zone(name: str) -> tzinfo | None:
    """Return a zone of IANA's database; None for any other text."""
    if name == "UTC" or not _NAME.fullmatch(name):
        return UTC if name == "UTC" else None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return None


def read_zone(request: Request) -> ShownZone:
    """Return the zone of the parameter `tz`, else of the cookie, else UTC."""
    asked = request.query_params.get("tz", "")
    found = find_zone(asked)
    kept = found or find_zone(request.cookies.get(_COOKIE, "")) or UTC
    return ShownZone(kept, bool(asked) and found is None)


def server_zone() -> str:
    """Return the name of this machine's zone; UTC if it has none."""
    local = os.path.realpath("/etc/localtime").partition("/zoneinfo/")[2]
    return str(find_zone(os.environ.get("TZ", "").removeprefix(":") or local) or UTC)


def keep_zone(request: Request, place: str) -> RedirectResponse:
    """Keep the choice of the viewer, and redirect to a place.

    `tz=UTC`: UTC. Otherwise local time: of the browser, whose script corrects the cookie; without
    scripts of this machine.
    """
    answer = RedirectResponse(place, 302)
    is_utc = request.query_params.get("tz") == "UTC"
    name = "UTC" if is_utc else server_zone()
    if is_utc or name != "UTC":
        answer.set_cookie(_COOKIE, name, max_age=_SECONDS, samesite="lax")
    else:
        answer.delete_cookie(_COOKIE, samesite="lax")
    return answer
