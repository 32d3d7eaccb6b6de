"""Details of AMD's cards on demand: errors, bad pages, throttling, engines, energy, XGMI.

Source: AMD SMI library, Python API reference. The call for throttling takes about 100 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ccagent.machine.gpu.vendor import Detail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ECC = {
    "ecc_corrected_volatile": "correctable_count",
    "ecc_uncorrected_volatile": "uncorrectable_count",
}
_REASONS = {
    "throttle_power_cap": "active_ppt_pwr",
    "throttle_hw_thermal": "active_socket_thrm",
    "throttle_prochot": "active_prochot_thrm",
    "throttle_vr_thermal": "active_vr_thrm",
    "throttle_mem_thermal": "active_hbm_thrm",
}
_ACTIVITIES = {"mem_utilization": "umc_activity", "media_utilization": "mm_activity"}
_CLOCKS = {
    "max_clock": ("GFX", "max_clk"),
    "max_mem_clock": ("MEM", "max_clk"),
    "video_clock": ("VCLK0", "clk"),
    "max_video_clock": ("VCLK0", "max_clk"),
}
_XGMI = {"xgmi_rx": "read", "xgmi_tx": "write"}
_RESERVED, _PENDING = 0, 1
"""Values of AMDSMI_MEM_PAGE_STATUS."""


def amd_card_details(
    ask: Callable[..., Any], clocks: Any, wanted: frozenset[str]
) -> Iterator[Detail]:
    """Yield the wanted details that a card supports.

    ask: calls a function of the card by name, and returns None if it is not supported.

    clocks: AmdSmiClkType.
    """
    for function, fields in (
        ("amdsmi_get_gpu_total_ecc_count", _ECC),
        ("amdsmi_get_violation_status", _REASONS),
        ("amdsmi_get_gpu_activity", _ACTIVITIES),
    ):
        if not wanted.isdisjoint(fields):
            yield from _of_table(ask(function), fields, wanted)
    for name, (kind, field) in _CLOCKS.items():
        clock = getattr(clocks, kind, None)
        if name in wanted and clock is not None:
            yield from _of_table(ask("amdsmi_get_clock_info", clock), {name: field}, wanted)
    if not wanted.isdisjoint({"retired_pages", "retired_pages_pending"}):
        yield from _pages(ask("amdsmi_get_gpu_bad_page_info"))
    if "fan" in wanted:
        yield from _fan(ask("amdsmi_get_gpu_fan_speed", 0), ask("amdsmi_get_gpu_fan_speed_max", 0))
    if "energy" in wanted:
        yield from _energy(ask("amdsmi_get_energy_count"))
    if "pcie_replays" in wanted:
        table = ask("amdsmi_get_pcie_info")
        metric = cast("dict[str, Any]", table).get("pcie_metric") if _is_table(table) else None
        yield from _of_table(metric, {"pcie_replays": "pcie_replay_count"}, wanted)
    if not wanted.isdisjoint(_XGMI):
        yield from _links(ask("amdsmi_get_link_metrics"), wanted)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _of_table(table: Any, fields: dict[str, str], wanted: frozenset[str]) -> Iterator[Detail]:
    """Yield the numbers and booleans of a table, without "N/A"."""
    values = cast("dict[str, Any]", table) if _is_table(table) else {}
    for name, field in fields.items():
        value = values.get(field)
        if name in wanted and isinstance(value, int) and value >= 0:
            yield Detail(name, int(value))


def _pages(pages: Any) -> Iterator[Detail]:
    if isinstance(pages, list):
        states = [page["status"] for page in cast("list[dict[str, Any]]", pages)]
        yield Detail("retired_pages", states.count(_RESERVED))
        yield Detail("retired_pages_pending", int(_PENDING in states))


def _fan(speed: Any, largest: Any) -> Iterator[Detail]:
    if isinstance(speed, int) and isinstance(largest, int) and speed >= 0 < largest:
        yield Detail("fan", round(100 * speed / largest))


def _energy(table: Any) -> Iterator[Detail]:
    """Yield the energy in millijoules. The library returns counter and unit."""
    values = cast("dict[str, Any]", table) if _is_table(table) else {}
    count, unit = values.get("energy_accumulator"), values.get("counter_resolution")
    if isinstance(count, int) and isinstance(unit, float) and unit > 0:
        yield Detail("energy", round(count * unit / 1000))


def _links(table: Any, wanted: frozenset[str]) -> Iterator[Detail]:
    """Yield the sums over the XGMI links in KB; none for a card without links."""
    values = cast("dict[str, Any]", table) if _is_table(table) else {}
    links = cast("list[dict[str, Any]]", values.get("links") or [])
    links = links[: cast("int", values.get("num_links", 0))]
    for name, field in _XGMI.items():
        if links and name in wanted:
            yield Detail(name, sum(link[field] for link in links))
