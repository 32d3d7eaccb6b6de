"""PCI addresses of cards in requests, with or without leading zeros."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_ADDRESS = re.compile(
    r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII
)
_INDEX = re.compile(r"[0-9]{1,4}", re.ASCII)


def canonical(address: str) -> tuple[int, ...] | None:
    """Return the numbers of an address; None for an invalid address."""
    found = _ADDRESS.fullmatch(address)
    return None if found is None else tuple(int(part or "0", 16) for part in found.groups())


def find_card(number: str, addresses: Sequence[str]) -> str | None:
    """Return the address of a card from its index, or from its address in any form."""
    if _INDEX.fullmatch(number):
        return addresses[int(number)] if int(number) < len(addresses) else None
    wanted = canonical(number)
    if wanted is None:
        return None
    return next((each for each in addresses if canonical(each) == wanted), None)
