"""Known names of controls, to refuse a policy with a wrong name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.controls.settings import AllowSettings

_RAPL = tuple(
    f"rapl.{domain}_{name}"
    for domain, limits in (
        ("pkg", ("limit_1", "limit_2")), ("psys", ("limit_1", "limit_2")), ("dram", ("limit",)),
        ("pp0", ("limit",)), ("pp1", ("limit",)),
    )
    for limit in limits
    for name in (limit, f"{limit}_time", *((f"{limit}_enable",) if limit != "limit_2" else ()))
)  # fmt: skip

NUMBERS = frozenset({
    "cpu_freq.min_cpu_freq", "cpu_freq.max_cpu_freq", "uncore_freq.min_uncore_freq",
    "uncore_freq.max_uncore_freq", "os.numa_balancing", "os.swappiness",
    "nvml.gfx_clock_app_target", "nvml.dram_clock_app_target", "nvml.power_limit_cur",
    "amd_gpu.power_limit_cur", "hsmp.pkg_power_limit_cur",
    *(name for name in _RAPL if not name.endswith("_enable")),
})  # fmt: skip
"""Controls with numbers. They need a range or values."""

CHOICES = frozenset({"cpu_freq.governor", "cpu_freq.epp", "os.transparent_hugepage"})
"""Controls with words."""

BOOLEANS = frozenset({
    "cpu_freq.boost", "cpu_freq.turbo", "cpu_freq.turbo_mode", "nvml.ecc_enabled_pend",
    "prefetch.l2_hwpf", "prefetch.l2_adj_pf", "prefetch.l1_dcu", "prefetch.l1_dcu_ip",
    "prefetch.l1_stream", "prefetch.l1_stride", "prefetch.l1_region", "prefetch.l2_stream",
    "prefetch.up_down", *(name for name in _RAPL if name.endswith("_enable")),
})  # fmt: skip
"""Controls that are on or off."""

SETTABLE = NUMBERS | CHOICES | BOOLEANS
CONFIG = "config."


def find_unknown_rules(rules: Mapping[str, AllowSettings]) -> Iterator[str]:
    """Yield the problems in names and limits of rules."""
    for name, rule in rules.items():
        where = f'allow."{name}"'
        has_range = rule.min is not None and rule.max is not None
        if name.startswith(CONFIG):
            from ccagent.controls.config_keys import find_wrong_key

            yield from (f"{where}: {problem}" for problem in find_wrong_key(name, rule))
        elif name not in SETTABLE:
            from ccagent.errors import nearest

            yield f"{where}: no control that can be set{nearest(name, sorted(SETTABLE))}"
        elif name in NUMBERS and not (rule.values or has_range):
            yield f"{where}: values, or min and max, are needed"
        elif name in CHOICES and not rule.values:
            yield f"{where}: values are needed"
        elif name not in NUMBERS and (rule.min is not None or rule.max is not None):
            yield f"{where}: min and max are for numbers"
