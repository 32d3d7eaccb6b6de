"""HTML templates and untrusted texts, all escaped except markup of ccagent; time zones."""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape
from starlette.responses import RedirectResponse

from ccagent import __version__
from ccagent.views.amounts import (
    format_age,
    format_duration,
    format_number,
    format_quantity,
    format_share,
    format_time,
    plural,
)
from ccagent.views.web import addresses
from ccagent.views.web.addresses import RANGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2.runtime import Context
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


_SHOWN = "\N{REPLACEMENT CHARACTER}"
LONGEST_TEXT = 256
_LONGEST_LABEL = 2000


def shown_text(text: object, longest: int = LONGEST_TEXT) -> str:
    """Return a text with control characters and direction marks replaced, at most `longest` long.

    Such characters could move or hide other text. The templates escape markup.
    """
    found = str(text)[:longest]
    if found.isascii() and found.isprintable():
        return found
    return "".join(
        _SHOWN if unicodedata.category(one) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"} else one
        for one in found
    )


def escape_label(text: object) -> Markup:
    """Return a text for an attribute or a title of a drawing: shown, and escaped."""
    return escape(shown_text(text, _LONGEST_LABEL))


def exact_value(text: object) -> Markup:
    """Return a text for the value of a form's field, which the browser sends back unchanged.

    Characters that `shown_text` replaces are numbers in the page.
    """
    parts = (escape(one) if shown_text(one) == one else f"&#x{ord(one):x};" for one in str(text))
    return Markup("".join(parts))  # noqa: S704 - escaped one by one


STATES = {
    "ok": ("●", "ok"), "hint": ("▲", "hint"), "BAD": ("■", "BAD"), "unknown": ("◌", "unknown"),
    "short": ("◌", "too short"), "busy": ("●", "busy"), "idle": ("○", "idle"),
    "silent": ("✕", "silent"), "up": ("●", "up"),
}  # fmt: skip
"""Shape and word by level. They make colours redundant."""

STATIC = ("pages.css", "icon.svg", "live.js", "crosshair.js", "zoom.js")


_COMMENTS = re.compile(rb"^ *//.*\n", re.MULTILINE)


@cache
def static_files() -> dict[str, bytes]:
    """Return the static files by name, scripts without lines of comments."""
    folder = resources.files("ccagent.views.web") / "static"
    files = {name: (folder / name).read_bytes() for name in STATIC}
    return {
        name: _COMMENTS.sub(b"", content) if name.endswith(".js") else content
        for name, content in files.items()
    }


@cache
def static_version() -> str:
    """Return a hash of the static files: browsers may cache files with it without limit."""
    found = hashlib.blake2b(digest_size=6)
    for name in STATIC:
        found.update(static_files()[name])
    return found.hexdigest()


def _static_link(name: str) -> str:
    return f"/static/{static_version()}/{name}"


BOKEH = ("bokeh.min.js", "bokeh-api.min.js")
"""Bokeh's scripts for zooming."""


@cache
def bokeh_folder() -> Path | None:
    """Return the directory of Bokeh's scripts. The package is located without import."""
    spec = find_spec("bokeh")
    for place in spec.submodule_search_locations or () if spec else ():
        path = Path(place) / "server" / "static" / "js"
        if all((path / name).is_file() for name in BOKEH):
            return path
    return None


@cache
def bokeh_version() -> str:
    """Return a version from size and mtime of Bokeh's scripts; "" without Bokeh."""
    folder = bokeh_folder()
    if folder is None:
        return ""
    found = [(folder / name).stat() for name in BOKEH]
    return "".join(f"{status.st_size:x}{int(status.st_mtime):x}" for status in found)


@pass_context
def _format_time(context: Context, moment: float | None) -> str:
    """Return a time in the zone of the page."""
    return format_time(moment, context["zone"])


@pass_context
def _format_field(context: Context, moment: float) -> str:
    """Return a time in the zone of the page, for the HTML input `datetime-local`."""
    return f"{datetime.fromtimestamp(moment, context['zone']):%Y-%m-%dT%H:%M}"


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("ccagent.views.web"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    filters: dict[str, Any] = {
        "text": shown_text,
        "exact": exact_value,
        "quantity": format_quantity,
        "duration": format_duration,
        "age": format_age,
        "moment": _format_time,
        "field": _format_field,
        "number": format_number,
        "share": format_share,
        "plural": plural,
    }
    names: dict[str, Any] = {
        "static": _static_link,
        "bokeh": " ".join(f"/bokeh/{bokeh_version()}/{name}" for name in BOKEH if bokeh_version()),
        "links": addresses,
        "ranges": list(RANGES),
        "version": __version__,
    }
    found.filters.update(filters)
    found.globals.update(names)
    return found


_EMPTY = {
    "cluster": "", "simulated": False, "data_link": "", "made": "", "zooms": False,
}  # fmt: skip
"""Values of the pages without figures."""


def render(template: str, values: Mapping[str, Any], now: float | None = None) -> bytes:
    """Return a page as HTML. values: with `shown`, the time zone."""
    shown: ShownZone = values["shown"]
    times: dict[str, Any] = {"zone": shown.zone, "zone_is_unknown": shown.is_unknown}
    if now is not None:
        times |= {"made": format_time(now, shown.zone), "zone_text": shown.describe(now)}
    text = _environment().get_template(template).render({**_EMPTY, **times, **values})
    return text.encode("utf-8", "replace")
