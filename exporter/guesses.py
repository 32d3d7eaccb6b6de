"""Rate limits for password attempts: a few at once, then one per second per client."""

from __future__ import annotations

import time

from ccagent.net.urls import network

_AT_ONCE = 5.0
_NEW_AFTER = 1.0
_MOST_CLIENTS = 1000


class GuessBudgets:
    """Budgets of password attempts by address. A guessing client does not delay the others.

    IPv6 addresses share a budget per /64 network: one client may own all its addresses.
    """

    def __init__(self) -> None:
        self._budgets: dict[str, tuple[float, float]] = {}

    def spend(self, peer: str) -> bool:
        """Return whether a client may try a password now. peer: the client's address."""
        now = time.monotonic()
        key = network(peer)
        left, moment = self._budgets.get(key, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - moment) / _NEW_AFTER)
        if len(self._budgets) >= _MOST_CLIENTS and key not in self._budgets:
            self._budgets.clear()
        is_permitted = left >= 1
        self._budgets[key] = (left - 1 if is_permitted else left, now)
        return is_permitted

    def restore(self, peer: str) -> None:
        """Reset the budget of a client after a successful login."""
        self._budgets.pop(network(peer), None)
