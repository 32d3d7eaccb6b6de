"""Replacement of keys of earlier releases by the current keys, with a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.config.described import describe_keys
from ccagent.config.settings import as_list, as_table, is_table, join_key

if TYPE_CHECKING:
    from ccagent.config.described import Key
    from ccagent.config.settings import Settings


def replace_renamed(
    table: dict[str, Any], settings: type[Settings], where: str, warnings: list[str]
) -> dict[str, Any]:
    """Return the table with the current names of its keys. Add a warning for each earlier name.

    A key with both names in the table keeps both. The earlier name is then reported as unknown.
    """
    keys = {key.name: key for key in describe_keys(settings)}
    found: dict[str, Any] = {}
    for name, value in table.items():
        present = settings.renamed.get(name, name)
        if present != name:
            if present in table:
                present = name
            else:
                warnings.append(f"{join_key(where, name)}: this key is now called {present}")
        key = keys.get(present)
        found[present] = _replace_within(key, value, join_key(where, present), warnings)
    return found


def _replace_within(key: Key | None, value: Any, where: str, warnings: list[str]) -> Any:
    if key is None or not key.within:
        return value
    if key.within == "list":
        return [
            replace_renamed(as_table(each), key.settings, where, warnings)
            if is_table(each)
            else each
            for each in as_list(value)
        ] or value
    if not is_table(value):
        return value
    if key.within == "table":
        return replace_renamed(as_table(value), key.settings, where, warnings)
    return {
        name: replace_renamed(as_table(each), key.settings, join_key(where, name), warnings)
        if is_table(each)
        else each
        for name, each in as_table(value).items()
    }
