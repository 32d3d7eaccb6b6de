"""AMD's cards and their details on demand, through AMD SMI (amdsmi).

Source: AMD SMI library, Python API reference. The bindings differ between releases. Missing
functions and fields are skipped. The call for throttling takes about 100 ms.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeGuard, cast

from msgspec.structs import replace

from ccagent.errors import NotHereError
from ccagent.machine.gpu.vendor import (
    DIRECTORIES,
    UNKNOWN_MODULE,
    Card,
    CardDescription,
    CardDetails,
    CardLostError,
    CardState,
    Detail,
    GpuVendor,
    ProcessOnCard,
    VendorReading,
    parse_address,
)
from ccagent.records.envelopes import SampleGpu, SysinfoGpuCard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ccagent.machine.background import LimitedCalls


_LOST = (
    "DRM_ERROR", "IO", "ADDRESS_FAULT", "DIRECTORY_NOT_FOUND", "NO_DRV", "DRIVER_NOT_LOADED",
    "AMDGPU_RESTART_ERR",
)  # fmt: skip

_MOST_WATTS = 10_000
_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_EARLIER = {"clk": "cur_clk", "energy_accumulator": "power"}
"""Names of fields before the releases 6.2 and 6.3."""

_TWO_DIES = ("0x7408", "0x740c")
"""Device ids of MI250X and MI250. Source: pci.ids."""

_DRM_MAJOR = 226
"""Major number of the device files /dev/dri/renderD128 and following."""


class Amd(GpuVendor):
    """AMD's cards. Each partition of a partitioned card is a card."""

    title: ClassVar[str] = "AMD SMI"
    directories = DIRECTORIES["amd"]

    def __init__(self) -> None:
        self._smi: Any = None
        self._lost: set[int] = set()
        self._read: list[tuple[int, Any]] = []
        self._boards: dict[str, AmdBoard] = {}

    def open(self) -> None:
        """Load AMD SMI and initialise it."""
        try:
            import amdsmi
        except ImportError as error:
            raise NotHereError(f"AMD SMI: the package amdsmi is missing: {error}") from error
        except (KeyError, OSError) as error:
            raise NotHereError("AMD SMI: libamd_smi.so is missing") from error
        except AttributeError as error:
            raise NotHereError(
                f"AMD SMI: libamd_smi.so is of another version than the package amdsmi: {error}"
            ) from error
        self._smi = cast("Any", amdsmi)
        try:
            self._smi.amdsmi_init(self._smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        except self._smi.AmdSmiException as error:
            raise NotHereError(f"AMD SMI: {_reason(error)}") from error
        codes = (getattr(self._smi.amdsmi_wrapper, f"AMDSMI_STATUS_{name}", None) for name in _LOST)
        self._lost = {code for code in codes if code is not None}

    def close(self) -> None:
        """Shut AMD SMI down."""
        with contextlib.suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def describe(self) -> list[CardDescription]:
        """Describe the cards. A lost card is skipped."""
        found: list[CardDescription] = []
        for index, handle in enumerate(self._handles()):
            with contextlib.suppress(CardLostError):
                description = self._description(index, handle)
                found.append(
                    CardDescription(card=self._card(index, handle), description=description)
                )
        return found

    def read(self) -> VendorReading:
        """Read the state of the cards and their processes."""
        cards: list[CardState] = []
        processes: list[ProcessOnCard] = []
        self._read = []
        for index, handle in enumerate(self._handles()):
            card = Card(index=index)
            state = SampleGpu(index=index, uuid="", failing=1)
            has_utilization = has_memory = False
            has_shares = True
            with contextlib.suppress(CardLostError):
                card = self._card(index, handle)
                total = self._kilobytes("amdsmi_get_gpu_memory_total", handle)
                has_memory = total > 0
                activity = self._ask("amdsmi_get_gpu_activity", handle)
                has_utilization = _is_known(_table(activity).get("gfx_activity"))
                state = self._state(index, handle, total, activity)
                listed = self._list_processes(handle)
                shares = share_utilization(listed, state.ce_util)
                has_shares = shares is not None or len(listed) < 2
                processes += _processes(listed, shares, state, total)
                self._read.append((index, handle))
            cards.append(
                CardState(
                    card=card,
                    state=state,
                    has_utilization=has_utilization,
                    has_memory=has_memory,
                    has_process_utilization=has_shares,
                )
            )
        modules = find_modules([self._boards.get(each.card.address) for each in cards])
        named = [
            replace(each, card=replace(each.card, module=module))
            for each, module in zip(cards, modules, strict=True)
        ]
        return VendorReading(cards=named, processes=processes)

    def read_details(self, wanted: frozenset[str], calls: LimitedCalls) -> list[CardDetails]:
        """Read the wanted details of all cards except for lost ones."""

        def asker(index: int, handle: Any) -> Callable[..., Any]:
            def ask(name: str, *arguments: Any) -> Any:
                return calls.call(f"{index} {name}", lambda: self._ask(name, handle, *arguments))

            return ask

        clocks = self._smi.AmdSmiClkType
        return [
            CardDetails(
                card=index,
                details=[*amd_card_details(asker(index, handle), clocks, wanted)],
            )
            for index, handle in self._read
        ]

    def _handles(self) -> list[Any]:
        try:
            handles: list[Any] = self._smi.amdsmi_get_processor_handles()
        except self._smi.AmdSmiException as error:
            raise NotHereError(f"AMD SMI: {_reason(error)}") from error
        return handles

    def _card(self, index: int, handle: Any) -> Card:
        address = self._ask("amdsmi_get_gpu_device_bdf", handle)
        place = self._ask("amdsmi_get_gpu_enumeration_info", handle)
        render = _number(place, "drm_render")
        name = parse_address(address) if isinstance(address, str) else ""
        if name.endswith(".0"):
            # Since release 6.3 all partitions of a card have its address, without their number.
            part = _number(self._ask("amdsmi_get_gpu_kfd_info", handle), "current_partition_id")
            name = parse_address(f"{name[:-1]}{part}") or name
        if name and name not in self._boards:
            asic = self._ask("amdsmi_get_gpu_asic_info", handle)
            board = self._ask("amdsmi_get_gpu_board_info", handle)
            serial = _text(board, "product_serial")
            number = _number(asic, "device_id")  # a text since release 6.1
            device = hex(number) if number else _text(asic, "device_id")
            self._boards[name] = AmdBoard(name, device, serial)
        return Card(index=index, address=name, device=f"{_DRM_MAJOR}:{render}" if render else "")

    def _description(self, index: int, handle: Any) -> SysinfoGpuCard:
        asic = self._ask("amdsmi_get_gpu_asic_info", handle)
        board = self._ask("amdsmi_get_gpu_board_info", handle)
        power = self._ask("amdsmi_get_power_cap_info", handle)
        bios = self._ask("amdsmi_get_gpu_vbios_info", handle)
        return SysinfoGpuCard(
            index=index,
            uuid=self._text("amdsmi_get_gpu_device_uuid", handle),
            manufacturer="AMD",
            model=_text(asic, "market_name") or _text(board, "product_name"),
            architecture=_text(asic, "target_graphics_version"),
            driver=_text(self._ask("amdsmi_get_gpu_driver_info", handle), "driver_version"),
            firmware=_text(bios, "version") or _text(bios, "part_number"),
            memory=self._kilobytes("amdsmi_get_gpu_memory_total", handle),
            power_limit=_watts(power, "power_cap"),
            max_power_limit=_watts(power, "max_power_cap"),
            min_power_limit=_watts(power, "min_power_cap"),
            max_ce_clock=self._clock(handle, "GFX", "max_clk"),
            max_memory_clock=self._clock(handle, "MEM", "max_clk"),
        )

    def _state(self, index: int, handle: Any, total: int, activity: Any) -> SampleGpu:
        used = self._kilobytes("amdsmi_get_gpu_memory_usage", handle)
        power = self._ask("amdsmi_get_power_info", handle)
        return SampleGpu(
            index=index,
            uuid=self._text("amdsmi_get_gpu_device_uuid", handle),
            fan=_fan_percent(
                self._ask("amdsmi_get_gpu_fan_speed", handle, 0),
                self._ask("amdsmi_get_gpu_fan_speed_max", handle, 0),
            )
            or 0,
            compute_mode=self._text("amdsmi_get_gpu_compute_partition", handle),
            performance_state=self._performance_state(handle),
            memory=used,
            ce_util=_number(activity, "gfx_activity"),
            memory_util=round(100 * used / total) if total else 0,
            temperature=self._temperature(handle),
            power=_number(power, "current_socket_power") or _number(power, "average_socket_power"),
            power_limit=_watts(self._ask("amdsmi_get_power_cap_info", handle), "power_cap"),
            ce_clock=self._clock(handle, "GFX", "clk"),
            memory_clock=self._clock(handle, "MEM", "clk"),
        )

    def _list_processes(self, handle: Any) -> list[dict[str, Any]]:
        """Return the processes of a card, each once. Before release 6.1 the list has handles."""
        found = self._ask("amdsmi_get_gpu_process_list", handle) or ()
        tables = [
            _table(each) or _table(self._ask("amdsmi_get_gpu_process_info", handle, each))
            for each in found
        ]
        return [*{table["pid"]: table for table in tables if table}.values()]

    def _performance_state(self, handle: Any) -> int:
        """Return AMD SMI's performance level as ExtendedUint: 0 unknown, n + 2 for n."""
        level = self._text("amdsmi_get_gpu_perf_level", handle)
        number = getattr(self._smi.amdsmi_wrapper, level, None) if level else None
        is_known = isinstance(number, int) and not level.endswith("UNKNOWN")
        return cast("int", number) + 2 if is_known else 0

    def _temperature(self, handle: Any) -> int:
        """Return degrees Celsius of the edge. Data centre cards have only a hot spot."""
        kinds = self._smi.AmdSmiTemperatureType
        metric = self._smi.AmdSmiTemperatureMetric.CURRENT
        for name in ("EDGE", "HOTSPOT", "JUNCTION"):
            kind = getattr(kinds, name, None)
            if kind is not None:
                degrees = self._ask("amdsmi_get_temp_metric", handle, kind, metric)
                if isinstance(degrees, int):
                    return degrees
        return 0

    def _clock(self, handle: Any, kind: str, field: str) -> int:
        clock = getattr(self._smi.AmdSmiClkType, kind)
        return _number(self._ask("amdsmi_get_clock_info", handle, clock), field)

    def _kilobytes(self, name: str, handle: Any) -> int:
        """Return a memory size in KB. Raise CardLostError for a card without this value."""
        try:
            size: int = getattr(self._smi, name)(handle, self._smi.AmdSmiMemoryType.VRAM)
        except self._smi.AmdSmiLibraryException as error:
            if error.get_error_code() in self._lost:
                raise CardLostError from error
            return 0
        return size // 1024

    def _text(self, name: str, handle: Any) -> str:
        text = self._ask(name, handle)
        return text if isinstance(text, str) and text != "N/A" else ""

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call AMD SMI. Return None if the card or the library does not support the call."""
        function: Callable[..., Any] | None = getattr(self._smi, name, None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except (self._smi.AmdSmiException, ValueError, KeyError):
            # ValueError: the bindings decode text strictly and parse numbers in the text.
            return None


class AmdBoard(NamedTuple):
    """Address of a card, its PCI device id, and the serial number of its board; empty: unknown."""

    address: str
    device: str
    serial: str


def find_modules(boards: Sequence[AmdBoard | None]) -> list[str]:
    """Return the name of the module of each card.

    Partitions of a card have its bus and device. Of the two dies of an MI250, one reports the power
    of both (aldebaran_is_primary() in aldebaran_ppt.c of Linux), and the other one 0. Both have the
    serial number of their board. Without it, they are neighbours in the order of the bus. If their
    number is odd, a die is missing, and the neighbour is unknown.
    """
    names = ["" if board is None else board.address.partition(".")[0] for board in boards]
    dies = sorted(
        (board.address, place)
        for place, board in enumerate(boards)
        if board is not None and board.device in _TWO_DIES
    )
    serials = Counter(board.serial for board in boards if board is not None)
    for number, (_, place) in enumerate(dies):
        board = boards[place]
        if board is not None and board.serial and serials[board.serial] <= 2:
            names[place] = board.serial
        elif len(dies) % 2 == 0:
            names[place] = names[dies[number - number % 2][1]]
        else:
            names[place] = UNKNOWN_MODULE
    return names


def share_utilization(processes: Sequence[dict[str, Any]], whole: int) -> list[float] | None:
    """Return the percentage of a card that each process uses; None if unknown.

    The utilization of the card is divided by the compute units that are occupied at the moment.
    Releases of AMD SMI report them as a number or in percent.
    """
    units = [process.get("cu_occupancy") for process in processes]
    known = [unit for unit in units if _is_known(unit)]
    if len(known) < len(units) or (whole and not any(known)):
        return None
    return [round(whole * unit / (sum(known) or 1), 1) for unit in known]


def _processes(
    listed: Sequence[dict[str, Any]], shares: list[float] | None, state: SampleGpu, total: int
) -> Iterator[ProcessOnCard]:
    """Yield the processes of a card. Values of the whole card are divided evenly."""
    sizes = [
        (_number(process.get("memory_usage"), "vram_mem") or _number(process, "mem")) // 1024
        for process in listed
    ]
    count = len(listed)
    for number, process in enumerate(listed):
        memory = sizes[number] if any(sizes) else state.memory // count
        yield ProcessOnCard(
            pid=process["pid"],
            card=state.index,
            utilization=round(state.ce_util / count, 1) if shares is None else shares[number],
            memory=memory,
            memory_percent=round(100.0 * memory / total, 1) if total else 0.0,
        )


def _reason(error: Any) -> str:
    """Return the message of a binding's exception on one line."""
    return " ".join(str(error).split())


def _table(answer: Any) -> dict[str, Any]:
    """Return an answer that is a table, else an empty table."""
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}


def _find(answer: Any, field: str) -> Any:
    """Return a value of a table, also under its earlier name; None without one."""
    table = _table(answer)
    return table.get(field, table.get(_EARLIER.get(field, "")))


def _is_known(value: Any) -> TypeGuard[int]:
    """Return whether a value is a number, and none that means "N/A".

    Not all bindings replace the largest number of the card's table, which has 16, 32 or 64 bits.
    """
    return isinstance(value, int) and value >= 0 and value not in _UNKNOWN


def _number(answer: Any, field: str) -> int:
    """Return a number from a table; 0 for "N/A"."""
    value = _find(answer, field)
    return value if _is_known(value) else 0


def _text(answer: Any, field: str) -> str:
    value = _table(answer).get(field)
    return value if isinstance(value, str) and value != "N/A" else ""


def _watts(values: Any, field: str) -> int:
    """Return watts. Releases from 6.0 report power limits in microwatts."""
    value = _number(values, field)
    return round(value / 1e6) if value > _MOST_WATTS else value


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
        fan = _fan_percent(
            ask("amdsmi_get_gpu_fan_speed", 0), ask("amdsmi_get_gpu_fan_speed_max", 0)
        )
        yield from _of_table({"fan": fan}, {"fan": "fan"}, wanted)
    if "energy" in wanted:
        yield from _energy(ask("amdsmi_get_energy_count"))
    if "pcie_replays" in wanted:
        metric = _table(ask("amdsmi_get_pcie_info")).get("pcie_metric")
        yield from _of_table(metric, {"pcie_replays": "pcie_replay_count"}, wanted)
    if not wanted.isdisjoint(_XGMI):
        yield from _links(ask("amdsmi_get_link_metrics"), wanted)


def _of_table(answer: Any, fields: dict[str, str], wanted: frozenset[str]) -> Iterator[Detail]:
    """Yield the numbers and booleans of a table, without "N/A"."""
    for name, field in fields.items():
        value = _find(answer, field)
        if name in wanted and _is_known(value):
            yield Detail(name, int(value))


def _pages(pages: Any) -> Iterator[Detail]:
    if isinstance(pages, list):
        states = [page["status"] for page in cast("list[dict[str, Any]]", pages)]
        yield Detail("retired_pages", states.count(_RESERVED))
        yield Detail("retired_pages_pending", int(_PENDING in states))


def _fan_percent(speed: Any, largest: Any) -> int | None:
    if isinstance(speed, int) and isinstance(largest, int) and speed >= 0 < largest:
        return round(100 * speed / largest)
    return None


def _energy(answer: Any) -> Iterator[Detail]:
    """Yield the energy in millijoules. A die whose energy another one counts reports 0."""
    values = _table(answer)
    count, unit = _number(values, "energy_accumulator"), values.get("counter_resolution")
    if isinstance(unit, float) and count > 0 and unit > 0:
        yield Detail("energy", round(count * unit / 1000))


def _links(answer: Any, wanted: frozenset[str]) -> Iterator[Detail]:
    """Yield the sums over the XGMI links in KB; none for a card without links."""
    values = _table(answer)
    links = cast("list[dict[str, Any]]", values.get("links") or [])
    links = links[: cast("int", values.get("num_links", 0))]
    for name, field in _XGMI.items():
        known = [value for link in links if (value := link[field]) < _UNKNOWN[-1]]
        if known and name in wanted:
            yield Detail(name, sum(known))
