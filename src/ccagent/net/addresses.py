"""Addresses of clients."""

from __future__ import annotations

import ipaddress


def network(address: str) -> str:
    """Return the part of an address that belongs to one client: IPv4, or the /64 of IPv6.

    An IPv4 address in the form of IPv6 is the same client. Other texts are unchanged.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((int(found), 64), strict=False))
