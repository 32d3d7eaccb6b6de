"""Query results as tables, JSON and CSV, and the screen of `ccagent jobstats live`."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import select
import shutil
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Literal

import msgspec

from ccagent.errors import CcagentError
from ccagent.log import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from ccagent.stores.jobstats.live import LiveAnswer
    from ccagent.stores.jobstats.queries import JobAnswer, TopAnswer

AnswerForm = Literal["table", "json", "csv"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 1024.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"


def format_top(answer: TopAnswer, form: AnswerForm) -> str:
    """Return the groups with the largest sums as text."""
    if form == "json":
        return _json(answer)
    if form == "csv":
        rows = [[row.key, *(row.totals[name] for name in answer.columns)] for row in answer.rows]
        return _csv([answer.by, *answer.columns], rows)
    return _table(
        [answer.by, *answer.columns],
        [
            [row.key or "-", *(format_amount(name, row.totals[name]) for name in answer.columns)]
            for row in answer.rows
        ],
        left=1,
    )


def format_live(answer: LiveAnswer) -> str:
    """Return targets and jobs as two tables."""
    head = f"file systems at {answer.at[:19]} UTC\n"
    if not answer.targets:
        return f"{head}{answer.note}\n"
    targets = _table(
        ["target", "read/s", "write/s", "ops/s", "read", "write", "of last hour",
         "all operations", "free", "clients", "locks"],
        [
            [
                one.target,
                *_transfers(one.read_bytes, one.write_bytes),
                format_amount("operations", one.operations),
                _latency(one.read_latency),
                _latency(one.write_latency),
                _factor(0.0 if one.factor is None and one.before else one.factor),
                _latency(one.latency) + (f", {_factor(one.slower)}" if one.slower else ""),
                "-" if one.free is None else f"{one.free:.0%}",
                "-" if one.clients is None else format_amount("clients", one.clients),
                "-" if one.locks is None else format_amount("locks", one.locks),
            ]
            for one in answer.targets
        ],
        left=1,
    )  # fmt: skip
    jobs = _table(
        ["job", "file system", "user", "account", "state", "nodes", "share", "read/s", "write/s",
         "meta/s", "mostly", "latency", "since"],
        [
            [
                one.job, one.file_system, one.user, one.account or "-", one.state or "-",
                str(one.nodes), f"{one.share:.0%}",
                *_transfers(one.read_bytes, one.write_bytes),
                format_amount("operations", one.metadata), one.dominant or "-",
                _latency(one.latency), f"{one.since[11:16]}, {_factor(one.factor)}",
            ]
            for one in answer.jobs
        ],
        left=5,
    )  # fmt: skip
    return f"{head}\n{targets}\n{jobs}"


def _transfers(read: float, written: float) -> tuple[str, str]:
    return format_amount("read_bytes", read), format_amount("write_bytes", written)


def _latency(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    return f"{microseconds / 1000:.2f} ms"


def _rank(rank: int, jobs: int) -> str:
    return f"{rank} of {jobs} jobs" if rank else "-"


def _factor(value: float | None) -> str:
    return "new" if value is None else f"{value:.1f} times"


def format_job(answer: JobAnswer, form: AnswerForm, *, has_series: bool = True) -> str:
    """Return the I/O of a job as text; in CSV only the rates.

    has_series: also totals by target and operation, and rates over time.
    """
    if form == "json":
        return _json(answer)
    if form == "csv":
        return _csv(
            ["from", "to", "target", "operation", "rate"],
            [[r.begins, r.ends, r.target, r.operation, r.rate] for r in answer.rates],
        )
    known = [f"{name} {value}" for name, value in answer.slurm.items() if value]
    head = f"job {answer.job}, {answer.begins} to {answer.ends}\n"
    if known:
        head += f"{printable(', '.join(known))}\n"
    if not answer.totals:
        return head + "nothing was read or written\n"
    summary = _table(
        ["file system", "read", "write", "metadata", "latency", "by bytes", "by metadata"],
        [
            [
                one.file_system, *_transfers(one.read_bytes, one.write_bytes),
                format_amount("metadata", one.metadata), _latency(one.latency),
                _rank(one.bytes_rank, one.jobs), _rank(one.metadata_rank, one.jobs),
            ]
            for one in answer.file_systems
        ],
        left=1,
    )  # fmt: skip
    if not has_series:
        return f"{head}\n{summary}"
    totals = _table(
        ["target", "operation", "total", "per second", "peak per second"],
        [
            [
                one.target, one.operation, format_amount(one.operation, one.total),
                format_amount(one.operation, one.rate), format_amount(one.operation, one.peak),
            ]
            for one in answer.totals
        ],
        left=2,
    )  # fmt: skip
    return f"{head}\n{summary}\n{totals}" + (f"\n{_rates(answer)}" if answer.rates else "")


def format_amount(operation: str, value: float) -> str:
    """Return bytes with a unit, and other numbers with spaces between thousands."""
    if not operation.endswith("_bytes"):
        if isinstance(value, int) or value >= 100:
            return f"{round(value):,}".replace(",", " ")
        return f"{value:.2f}"
    amount, unit = float(value), 0
    while amount >= _STEP and unit < len(_UNITS) - 1:
        amount /= _STEP
        unit += 1
    return f"{amount:.{0 if not unit else 1}f} {_UNITS[unit]}"


def _rates(answer: JobAnswer) -> str:
    """Return a table of rates over time, summed over the targets."""
    names = sorted({one.operation for one in answer.rates})
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for one in answer.rates:
        row = sums.setdefault((one.begins, one.ends), {})
        row[one.operation] = row.get(one.operation, 0.0) + one.rate
    return _table(
        ["from", "to", *(f"{name}/s" for name in names)],
        [
            [begins[:19], ends[:19], *(format_amount(name, row.get(name, 0.0)) for name in names)]
            for (begins, ends), row in sorted(sums.items())
        ],
        left=2,
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return aligned columns. left: number of left-aligned columns."""
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines) + "\n"


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _json(answer: object) -> str:
    return msgspec.json.format(msgspec.json.encode(answer), indent=1).decode() + "\n"


def show_live(
    ask: Callable[[dict[str, str]], LiveAnswer], answer: LiveAnswer, seconds: float
) -> None:
    """Show answers until `q` is pressed, refreshed in place.

    ask: returns the next answer for changed parameters. A store that does not answer is named in
    the last line; the answer before stays.
    """
    from ccagent.stores.jobstats.live import ORDERS

    order, reason = ORDERS[0], ""
    with _keys():
        while True:
            _draw(answer, f"q quit, s sort: {order}, every {seconds:g} s", reason)
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                if not select.select([sys.stdin], [], [], left)[0]:
                    continue
                # Not through sys.stdin: it would keep further keys in its buffer.
                key = os.read(sys.stdin.fileno(), 1)
                if key in {b"q", b""}:
                    return
                if key == b"s":
                    order = ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)]
                    break
            try:
                answer, reason = ask({"sort": order}), ""
            except CcagentError as error:
                reason = str(error)


def _draw(answer: LiveAnswer, keys: str, reason: str) -> None:
    width, height = shutil.get_terminal_size()
    lines = format_live(answer).splitlines()[: height - 1]
    foot = reason or keys
    text = "".join(f"{line[:width]}{_CLEAR_LINE}\r\n" for line in lines)
    sys.stdout.write(f"{_HOME}{text}{foot[:width]}{_CLEAR_REST}")
    sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Generator[None]:
    """Read keys without Enter and echo, on the terminal's other screen."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
