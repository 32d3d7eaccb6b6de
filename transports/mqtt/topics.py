"""Topics by template: `{prefix}/{cluster}/{kind}/{node}`."""

from __future__ import annotations

import re
from functools import lru_cache

from ccagent.errors import ConfigurationError

_LONGEST = 65535
_NEVER = re.compile(r"[+#\0]")
_NOT_IN_LEVELS = re.compile(r"[+#\0/]")


def check_template(key: str, template: str, *known: str) -> None:
    """Refuse a template that is empty or has wildcards or unknown names in braces.

    Raises ConfigurationError.
    """
    if not template:
        raise ConfigurationError(f"{key}: must not be empty")
    if _NEVER.search(template):
        raise ConfigurationError(f"{key}: the wildcards + and # can't be part of it")
    rest = re.sub(r"\{(" + "|".join(known) + r")\}", "", template)
    if "{" in rest or "}" in rest:
        names = ", ".join(f"{{{name}}}" for name in known)
        raise ConfigurationError(f"{key}: it may hold {names}, nothing else in braces")


@lru_cache(maxsize=1000)
def filled(template: str, cluster: str, node: str, kind: str, prefix: str) -> str:
    """Put values into a template. Raises ValueError if one can't be part of a topic.

    Without a prefix, its level is left out. Only a prefix may be several levels.
    """
    if not prefix:
        template = template.replace("{prefix}/", "").replace("{prefix}", "")
    values = {"cluster": cluster, "node": node, "kind": kind, "prefix": prefix}

    def value(match: re.Match[str]) -> str:
        name = match[1]
        found = values[name]
        if not found or (_NEVER if name == "prefix" else _NOT_IN_LEVELS).search(found):
            raise ValueError(f"the {name} {found!r} can't be a level of a topic")
        return found

    topic = re.sub(r"\{(\w+)\}", value, template)
    if not 0 < len(topic.encode()) <= _LONGEST:
        raise ValueError(f"a topic has 1 to {_LONGEST} bytes")
    return topic
