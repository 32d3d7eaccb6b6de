"""The report of a job as text, as JSON, and as a summary for Slurm's AdminComment."""

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
from ccagent.views.amounts import clock, core_time, cores, memory, memory_of, percent, plural
from ccagent.views.job.mounts import JobMounts, format_mounts, format_network
from ccagent.views.terminal import Style, clean, cut, fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.views.job.figures import CardFigures, JobFigures, NodeFigures, UsedShare
    from ccagent.views.job.judged_job import JobFinding
    from ccagent.views.job.rules import JobReport


_BAR = 42
_LABEL = 8
_INDENT = " " * _LABEL
_LONGEST_NAME = 64
_MOST_CARDS = 8
_COLOURS = {"BAD": "bad", "hint": "hint", "ok": "good"}


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
        from ccagent.views.usage.formats import describe_usage

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


_FEWEST = 2
"""Minimum of samples for a summary, as in jobstats."""


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
        if card.memory_total and card.memory_peak is not None and card.utilization is not None:
            total[card.card] = int(card.memory_total)
            used[card.card] = int(card.memory_peak)
            share[card.card] = round(card.utilization, 1)
    if total:
        found |= {"gpu_total_memory": total, "gpu_used_memory": used, "gpu_utilization": share}
    return found
