"""NVLink of one card: state, traffic and errors of links.

Source: NVML API reference, "NvLink Methods". NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_* are counters in
KiB of a link, or of all links with the maximum scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.machine.gpu.vendor import Detail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LINKS = 36
"""NVML_NVLINK_MAX_LINKS. The card rejects numbers of missing links."""
_ALL_LINKS = 0xFFFFFFFF
_TRAFFIC = {"tx": 138, "rx": 139}
_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc": 3, "ecc": 4}
"""Numbers of nvmlNvLinkErrorCounter_t."""


def read_links(
    ask: Callable[..., Any],
    fields: Callable[[list[tuple[int, int]]], list[int | None]],
    wanted: frozenset[str],
) -> Iterator[Detail]:
    """Return the wanted details of a card and its links. Details without a value are skipped."""
    names = {name for name in wanted if name.startswith("nvlink_")}
    traffic = [direction for direction in _TRAFFIC if f"nvlink_{direction}" in names]
    totals = fields([(_TRAFFIC[direction], _ALL_LINKS) for direction in traffic])
    for direction, total in zip(traffic, totals, strict=True):
        if total is not None:
            yield Detail(f"nvlink_{direction}", total)
    if names <= {"nvlink_tx", "nvlink_rx"}:
        return
    states = {link: ask("nvmlDeviceGetNvLinkState", link) for link in range(_LINKS)}
    active = {link: state for link, state in states.items() if isinstance(state, int)}
    if active:
        yield from _of_states(active, names)
        yield from _of_errors(ask, active, names)
        yield from _of_traffic(fields, active, names)


def _of_states(states: dict[int, int], names: set[str]) -> Iterator[Detail]:
    if "nvlink_active" in names:
        yield Detail("nvlink_active", sum(map(bool, states.values())))
    if "nvlink_link_active" in names:
        for link, state in states.items():
            yield Detail("nvlink_link_active", int(bool(state)), str(link))


def _of_errors(
    ask: Callable[..., Any], states: dict[int, int], names: set[str]
) -> Iterator[Detail]:
    for kind, counter in _ERRORS.items():
        total, of_link = f"nvlink_{kind}_errors", f"nvlink_link_{kind}_errors"
        if not names & {total, of_link}:
            continue
        counts = {link: ask("nvmlDeviceGetNvLinkErrorCounter", link, counter) for link in states}
        known = {link: count for link, count in counts.items() if isinstance(count, int)}
        if known and total in names:
            yield Detail(total, sum(known.values()))
        if of_link in names:
            for link, count in known.items():
                yield Detail(of_link, count, str(link))


def _of_traffic(
    fields: Callable[[list[tuple[int, int]]], list[int | None]],
    states: dict[int, int],
    names: set[str],
) -> Iterator[Detail]:
    for direction, number in _TRAFFIC.items():
        if f"nvlink_link_{direction}" in names:
            values = fields([(number, link) for link in states])
            for link, value in zip(states, values, strict=True):
                if value is not None:
                    yield Detail(f"nvlink_link_{direction}", value, str(link))
