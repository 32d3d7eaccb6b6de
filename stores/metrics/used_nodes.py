"""The nodes of running jobs, from cc-backend. Their values are kept longer."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

import msgspec

from ccagent.log import logger

_SECONDS = 10.0
_LARGEST = 64 << 20


def find_used_nodes(url: str, time: int) -> frozenset[tuple[str, str]] | None:
    """Return cluster and name of each node with a running job that started before a time.

    Return None if cc-backend does not answer.
    """
    if not url:
        return frozenset()
    place = f"{url.rstrip('/')}/api/jobs/used_nodes?ts={time}"
    try:
        with urllib.request.urlopen(place, timeout=_SECONDS) as answer:  # noqa: S310 - configured
            found = msgspec.json.decode(answer.read(_LARGEST), type=dict[str, list[str]])
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException) as error:
        logger.error("%s: %s; releasing no values now", place, error)
        return None
    return frozenset((cluster, node) for cluster, nodes in found.items() for node in nodes)
