"""Addresses of clients."""

from __future__ import annotations

import ipaddress


def network(address: str) -> str:
    """Return an IPv4 address unchanged, and the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if found.version == 4 or found.ipv4_mapped is not None:
        return address
    return str(ipaddress.ip_network((int(found), 64), strict=False))
