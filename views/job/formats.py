"""Reports of jobs as text, as JSON, and as a summary for Slurm's AdminComment.

Usage of ended jobs as a table and as CSV.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import compact
from ccagent.stores.metrics.usage.table import JOULES_PER_KWH, UsageAnswer, UsageSum
from ccagent.views.amounts import (
    clock,
    core_time,
    cores,
    format_number,
    format_quantity,
    format_time,
    memory,
    memory_of,
    percent,
    plural,
)
from ccagent.views.job.mounts import JobMounts, format_mounts, format_network
from ccagent.views.terminal import Style, clean, cut, fold, write_csv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from ccagent.views.job.figures import CardFigures, JobFigures, NodeFigures, UsedShare
    from ccagent.views.job.judged_job import JobFinding
    from ccagent.views.job.rules import JobReport

_BAR = 42
_LABEL = 8
_INDENT = " " * _LABEL
_LONGEST_NAME = 64
_MOST_CARDS = 8
_FEWEST = 2
"""Minimum of samples for a summary, as in jobstats."""
_COLOURS = {"BAD": "bad", "hint": "hint", "ok": "good"}

_USAGE_FIELDS = (
    "period", "key", "jobs", "measured_jobs", "bounded_jobs", "kwh", "least_kwh", "most_kwh",
    "co2_kg", "factor_share", "cost", "currency",
)  # fmt: skip


def format_report(
    report: JobReport, style: Style, width: int = 80, mounts: JobMounts | None = None
) -> str:
    """Return a report in lines of at most `width` columns. Wide terminals get bars.

    mounts: of the job, if known.
    """
    job = report.figures
    lines = [_head(job, width), *fold(_allocation(job), width)]
    has_bars = width >= 72 and not style.is_plain
    for share in _shares(report):
        lines += _share_lines(share, style if has_bars else None, width)
    if job.cards:
        lines += _cards(job, width)
    if job.usage is not None:
        text = f"{'energy':{_LABEL}}{describe_usage(job.usage, job.currency)}"
        lines += fold(text, width, _INDENT, "")
    if mounts is not None:
        lines += _mounts(mounts, len(job.nodes), width)
    for finding in report.findings:
        lines += _finding(finding, style, width)
    if report.hidden:
        names = ", ".join(sorted(one.rule for one in report.hidden))
        lines += fold(f"Then further advice follows: {names}.", width, _INDENT)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _mounts(mounts: JobMounts, nodes: int, width: int) -> list[str]:
    """Return the lines of mounts and network. nodes: number of nodes of the job."""
    lines: list[str] = []
    for name, texts in (("mounts", format_mounts(mounts)), ("network", format_network(mounts))):
        for number, text in enumerate(texts):
            label = f"{'' if number else name:{_LABEL}}"
            lines += fold(f"{label}{clean(text)}", width, _INDENT, "")
    if mounts.is_from_store and mounts.nodes < nodes:
        text = f"mounts and network of {mounts.nodes} of {nodes} nodes"
        lines += fold(text, width, _INDENT)
    return lines


def _head(job: JobFigures, width: int) -> str:
    name = cut(clean(job.name), min(_LONGEST_NAME, max(8, width - 50)))
    user = "/".join(clean(one) for one in (job.user, job.account) if one)
    state = clean(job.state) or "state unknown"
    if job.exit_code is not None and not job.is_running:
        state += f" exit {job.exit_code}" if job.exit_code else ""
    place = " ".join([clean(job.cluster), *_nodes(job)])
    parts = (f"Job {clean(job.job)} {name}".rstrip(), f"{user} {clean(job.partition)}".strip(),
             state, place)  # fmt: skip
    return cut("  ".join(part for part in parts if part), width)


def _nodes(job: JobFigures) -> list[str]:
    names = [node.name for node in job.nodes]
    try:
        return [clean(one) for one in compact(names)]
    except UnparsableError:
        return [clean(one) for one in names[:8]]


def _allocation(job: JobFigures) -> str:
    ran = f"ran {clock(job.elapsed)}"
    if job.time_limit:
        ran += f" of {clock(job.time_limit)} ({percent(100 * job.elapsed / job.time_limit)} %)"
    known = [node.cores for node in job.nodes if node.cores is not None]
    limits = [node.memory_limit for node in job.nodes if node.memory_limit is not None]
    gpus = job.gpu_count
    coverage = job.coverage
    samples = plural(job.samples, "sample")
    if coverage is not None:
        samples += f", {percent(min(100.0, coverage))} %"
    return "   ".join([
        ran,
        cores(sum(known)) if known and len(known) == len(job.nodes) else "cores unknown",
        memory(sum(limits)) if limits else "no memory limit",
        "a part of a GPU" if job.has_gpu_share and not gpus else
        "GPUs unknown" if gpus is None else plural(gpus, "GPU") if gpus else "no GPU",
        samples,
    ])  # fmt: skip


def _shares(report: JobReport) -> Iterator[tuple[str, UsedShare | None, str]]:
    """Yield label, share, and a text with the total of the share."""
    found, job = report.efficiency, report.figures
    cpu, held = found.cpu, found.memory
    known = ""
    if cpu is not None and cpu.nodes < len(job.nodes):
        known = f", {cpu.nodes} of {len(job.nodes)} nodes reported"
    yield "CPU", cpu, f"of {core_time(cpu.total)}{known}" if cpu is not None else ""
    if held is not None:
        text = f"{memory_of(held.used, held.total)} peak"
        cache = [
            max(0.0, node.memory_charged - node.memory_peak)
            for node in job.nodes
            if node.memory_charged is not None and node.memory_peak is not None
        ]
        if cache:
            text += f", and {memory(sum(cache))} page cache"
        yield "memory", held, text
    elif found.charged is not None:
        text = memory_of(found.charged.used, found.charged.total)
        yield "memory", found.charged, f"{text}, page cache included"
    else:
        yield "memory", None, ""
    if job.gpu_count:
        yield "GPU", found.gpu, f"of {plural(found.gpu.nodes, 'GPU')}" if found.gpu else ""
        if found.gpu_memory is not None:
            text = f"{memory_of(found.gpu_memory.used, found.gpu_memory.total)} peak"
            yield "GPU mem", found.gpu_memory, text


def _share_lines(
    share: tuple[str, UsedShare | None, str], style: Style | None, width: int
) -> list[str]:
    label, found, text = share
    if found is None:
        return [f"{label:{_LABEL}}unknown"]
    value = f"{percent(found.percent)} %"
    if style is None:
        return fold(f"{label:{_LABEL}}{value:>6} {text}", width, _INDENT, "")
    filled = min(_BAR, round(_BAR * found.percent / 100))
    bar = f"[{style.paint('bar', '|' * filled)}{' ' * (_BAR - filled)}]"
    begin = _LABEL + _BAR + 3
    room = width - begin
    first, *more = textwrap.wrap(f"{value:>5} {text}", room, subsequent_indent=" " * 6) or [""]
    return [f"{label:{_LABEL}}{bar} {first}", *(f"{' ' * begin}{one}" for one in more)]


def _cards(job: JobFigures, width: int) -> list[str]:
    """Return the use of each card; of many cards, only the least used."""
    cards = job.cards
    several = len(job.nodes) > 1

    def name(node: str, card: CardFigures) -> str:
        where = f" of {clean(node)}" if several else ""
        use = "unknown" if card.utilization is None else f"{percent(card.utilization)} %"
        return f"GPU {clean(card.card)}{where} {use}"

    begin = ""
    if len(cards) > _MOST_CARDS:
        begin = "least used: "
        cards = sorted(cards, key=lambda one: one[1].utilization or 0.0)[:_MOST_CARDS]
    text = begin + ", ".join(name(node.name, card) for node, card in cards)
    return fold(text, width, _INDENT)


def _finding(finding: JobFinding, style: Style, width: int) -> list[str]:
    text = clean(finding.text)
    if finding.rule != finding.level:
        text += f" [{finding.rule}]"
    lines = fold(text, width, _INDENT)
    level = style.paint(_COLOURS.get(finding.level, "dim"), finding.level)
    return [level + lines[0][len(finding.level) :], *lines[1:]]


def encode_report(report: JobReport, mounts: JobMounts | None = None) -> bytes:
    """Return a report as JSON without line breaks. Unknown figures are null. mounts: if known."""
    shares = report.efficiency
    coverage = report.figures.coverage
    content: dict[str, Any] = {
        "verdict": report.level,
        "findings": report.findings,
        "hidden": report.hidden,
        "efficiency": {
            name: _describe_share(getattr(shares, name)) for name in shares.__struct_fields__
        },
        "samples": report.figures.samples,
        "coverage": None if coverage is None else round(coverage, 3),
        "job": report.figures,
    }
    if mounts is not None:
        content["mounts"] = mounts
    return msgspec.json.encode(content)


def _describe_share(share: UsedShare | None) -> dict[str, Any] | None:
    if share is None:
        return None
    return {
        "percent": round(share.percent, 3),
        "used": share.used,
        "total": share.total,
        "parts": share.nodes,
    }


def encode_summary(report: JobReport) -> str:
    """Return the summary for reportseff and job_defense_shield: `JS1:` in Slurm's AdminComment.

    Source: jobstats, docs/setup/summaries.md: base64 of gzip of JSON without spaces. `JS1:Short`
    stands for a too short job, `JS1:None` for a job without data.
    """
    job = report.figures
    if job.samples < _FEWEST:
        is_early = any(one.level == "short" for one in report.findings)
        return "JS1:Short" if is_early else "JS1:None"
    text = json.dumps(summarize(job), separators=(",", ":")).encode()
    # No time in gzip's header: the same job must have the same summary.
    return f"JS1:{base64.b64encode(gzip.compress(text, mtime=0)).decode('ascii')}"


def summarize(job: JobFigures) -> dict[str, Any]:
    """Return the summary in the format of jobstats: memory in bytes, times in seconds."""
    return {
        "nodes": {node.name: _summarize_node(node) for node in job.nodes if node.samples},
        "total_time": int(job.elapsed),
        "gpus": job.gpu_count or 0,
    }


def _summarize_node(node: NodeFigures) -> dict[str, Any]:
    """Return the summary of a node. Values without total are omitted: readers divide by totals."""
    found: dict[str, Any] = {}
    if node.memory_limit and node.memory_peak is not None:
        found |= {"total_memory": int(node.memory_limit), "used_memory": int(node.memory_peak)}
    if node.cores and node.cpu_seconds is not None:
        found |= {"total_time": round(node.cpu_seconds, 1), "cpus": math.ceil(node.cores)}
    total: dict[str, int] = {}
    used: dict[str, int] = {}
    share: dict[str, float] = {}
    for card in node.cards:
        # Readers treat a missing utilization as 0.
        if card.utilization is None:
            continue
        share[card.card] = round(card.utilization, 1)
        if card.memory_total and card.memory_peak is not None:
            total[card.card] = int(card.memory_total)
            used[card.card] = int(card.memory_peak)
    if total:
        found |= {"gpu_total_memory": total, "gpu_used_memory": used}
    if share:
        found["gpu_utilization"] = share
    return found


def format_energy(found: UsageSum) -> str:
    """Return the energy of a sum with its interval."""
    if not found.measured:
        return "unknown"
    text = format_quantity(found.joules / 3600, "Wh")
    if not found.bounded:
        return f"{text}, interval unknown"
    least, most = (format_quantity(one / 3600, "Wh") for one in (found.least, found.most))
    return f"{text} ({least} to {most})"


def format_grams(found: UsageSum, unit: str = "kg") -> str:
    """Return the CO2 of a sum; of which part of its energy, if the factor is not always known."""
    if found.grams is None:
        return "unknown"
    text = f"{format_number(found.grams / 1000)} {unit}"
    if found.factor_share < 0.9995:
        text += f" for {format_number(100 * found.factor_share)} %"
    return text


def format_cost(found: UsageSum, currency: str) -> str:
    """Return the cost of a sum; empty without a price."""
    return "" if found.cost is None else f"{found.cost:.2f} {clean(currency)}"


def describe_usage(found: UsageSum, currency: str) -> str:
    """Return energy, CO2 and cost of a job in a line."""
    texts = [format_energy(found)]
    if found.coverage is not None:
        texts.append(f"{percent(100 * found.coverage)} % covered")
    if found.grams is not None:
        texts.append(format_grams(found, "kg CO2"))
    return "   ".join([*texts, *filter(None, [format_cost(found, currency)])])


def format_table(answer: UsageAnswer) -> list[str]:
    """Return the lines of a table, with notes on what the sums lack."""
    head = ["", answer.by, "jobs", "energy (interval)", "CO2", "cost"]
    rows = [head, *(_usage_row(one, one.key or "unknown", answer) for one in answer.rows)]
    rows.append(_usage_row(answer.total, "total", answer))
    kept = [place for place in range(len(head)) if any(row[place] for row in rows[1:])]
    widths = {place: max(len(row[place]) for row in rows) for place in kept}
    lines = [
        "  ".join(
            row[place].rjust(widths[place]) if place == 2 else row[place].ljust(widths[place])
            for place in kept
        ).rstrip()
        for row in rows
    ]
    start, end = format_time(answer.start), format_time(answer.end)
    return [f"jobs that ended from {start} to {end}", "", *lines, "", *note_usage(answer)]


def _usage_row(found: UsageSum, name: str, answer: UsageAnswer) -> list[str]:
    return [
        found.period, clean(name), str(found.jobs), format_energy(found), format_grams(found),
        format_cost(found, answer.currency),
    ]  # fmt: skip


def note_usage(answer: UsageAnswer, zone: tzinfo | None = None) -> Iterator[str]:
    """Yield sentences on unknown energy, the interval, PUE and the source of factors.

    zone: of times; None: of this machine.
    """
    total = answer.total
    if total.measured < total.jobs:
        yield f"Energy known of {total.measured} of {total.jobs} jobs; the others are not in it."
    if total.bounded < total.measured:
        yield f"Interval known of {total.bounded} of {total.measured} jobs; others count as exact."
    yield (
        "Interval: errors on one node are added, those of different nodes by their squares, except"
        f" for {format_number(100 * answer.common_error)} % that all sensors may share."
    )
    if answer.pue != 1 and (total.grams is not None or total.cost is not None):
        yield f"CO2 and cost are of the energy times a PUE of {format_number(answer.pue)}."
    if answer.factor_problem:
        hour = answer.factor_hour
        since = "" if hour is None else f" since {format_time(hour, zone)}"
        yield f"No factor of {answer.factor_source}{since}: {clean(answer.factor_problem)}"
    elif total.grams is None and not answer.factor_source:
        yield "CO2 needs factors: usage.factor-file or usage.source of the store."


def format_csv(answer: UsageAnswer) -> str:
    """Return CSV with one line per key and period, without the total. Unknown values are empty."""
    return write_csv(_USAGE_FIELDS, (_csv_row(one, answer.currency) for one in answer.rows))


def _csv_row(one: UsageSum, currency: str) -> tuple[object, ...]:
    is_known = one.measured > 0
    energies = [
        joules / JOULES_PER_KWH if is_known else None
        for joules in (one.joules, one.least, one.most)
    ]
    grams = None if one.grams is None else one.grams / 1000
    return (
        one.period, one.key, one.jobs, one.measured, one.bounded, *energies, grams,
        one.factor_share if is_known else None, one.cost, currency,
    )  # fmt: skip
