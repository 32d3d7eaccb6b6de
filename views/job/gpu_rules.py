"""Rules for the use of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.job.amounts import GB, clock, number, percent, plural, request_memory
from ccagent.views.job.finding import JobFinding

if TYPE_CHECKING:
    from ccagent.views.job.figures import CardFigures, NodeFigures
    from ccagent.views.job.finding import FindingLevel, JudgedJob


def judge_idle_gpus(job: JudgedJob) -> JobFinding | None:
    """Find cards that were at 0 in all samples, or in all samples of a window before the end."""
    if not job.is_long:
        return None
    known = [(node, card) for node, card in job.figures.cards if card.peak_utilization is not None]
    unused = [
        (node, card) for node, card in known if card.peak_utilization == 0 and job.has_use_of(card)
    ]
    if unused:
        return _never_used(job, unused, len(job.figures.cards))
    window = job.limits.gpu_idle_window
    idle = [(node, card) for node, card in known if card.idle_at_end >= window.seconds > 0]
    if not idle:
        return None
    shortest = min(card.idle_at_end for _, card in idle)
    since = max(0.0, job.figures.elapsed - shortest)
    verb = "has" if len(idle) == 1 else "have"
    end = "End the job" if job.figures.is_running else "End such a job"
    return JobFinding(
        "gpu-idle",
        "BAD",
        f"{_names(job, idle)} {verb} been at 0 % for the last {clock(shortest)} (limit"
        f" {window}), idle since {clock(since)} after the start. {end} when its work on the GPU"
        " is done, or do what follows in a job without GPU (--dependency).",
    )


def _never_used(
    job: JudgedJob, unused: list[tuple[NodeFigures, CardFigures]], count: int
) -> JobFinding:
    samples = min(card.samples for _, card in unused)
    verb = "wasn't" if len(unused) == 1 else "weren't"
    text = (
        f"{_names(job, unused)} {verb} used in any of {plural(samples, 'sample')}"
        f" ({clock(job.figures.elapsed)}; limit {job.limits.min_runtime})."
    )
    left = count - len(unused)
    if left:
        text += f" Ask for {plural(left, 'GPU')} (--gpus={left}), or make the program use all."
    else:
        text += " Ask for none (leave out --gpus), or find out why the program doesn't use it."
    return JobFinding("gpu-idle", "BAD", text)


def judge_low_gpus(job: JudgedJob) -> JobFinding | None:
    """Find a low mean use of all cards. Parts of cards are not judged, interactive jobs later."""
    if job.figures.has_gpu_share:
        return None
    used, limits = job.efficiency.gpu, job.limits
    wait = limits.gpu_low_interactive.seconds if job.is_interactive else 0
    if used is None or not job.is_long or job.figures.elapsed <= wait:
        return None
    memory = job.efficiency.gpu_memory
    spare = limits.gpu_low_spare_memory
    if spare < 100 and memory is not None and memory.percent > spare:
        return None
    if not all(job.has_use_of(card) for _, card in job.figures.cards):
        return None
    level: FindingLevel
    if used.percent <= limits.gpu_low_bad:
        level, border = "BAD", f"up to {number(limits.gpu_low_bad)} % is BAD"
    elif used.percent < limits.gpu_low_hint:
        level, border = "hint", f"aim at {number(limits.gpu_low_hint)} % or more"
    else:
        return None
    cards = plural(used.nodes, "GPU")
    fewer = (
        "ask for fewer GPUs (--gpus)" if used.nodes > 1 else "ask for a smaller GPU (--gpus=TYPE:1)"
    )
    return JobFinding(
        "gpu-low",
        level,
        f"{cards}: {percent(used.percent)} % use on average; {border}. Find out what the program"
        f" waits for (input, CPU, small batches), or {fewer}.",
    )


def judge_gpu_share(job: JudgedJob) -> JobFinding | None:
    """Find nodes where a job has more cores or memory per GPU than the node has."""
    limits = job.limits
    for node in job.figures.nodes:
        cards, all_cards = len(node.cards), node.total_cards
        if not cards or not all_cards or cards >= all_cards:
            continue
        if node.cores and node.total_cores:
            share, own = node.total_cores / all_cards, node.cores / cards
            if own > limits.gpu_share_cores * share:
                fair = max(1, int(share * cards))
                return JobFinding(
                    "gpu-share",
                    "hint",
                    f"{number(own)} cores a GPU on {node.name}, whose share is {number(share)};"
                    f" above {number(limits.gpu_share_cores)} times that, GPUs are left without"
                    f" cores. Ask for {plural(fair, 'core')} there (--cpus-per-gpu="
                    f"{max(1, int(share))}).",
                )
        if node.memory_limit and node.total_memory:
            share, own = node.total_memory / all_cards, node.memory_limit / cards
            needed = (node.memory_peak or 0) * (1 + limits.mem_margin / 100)
            if own > limits.gpu_share_memory * share and needed < node.memory_limit:
                less = request_memory(max(needed / cards, GB / 10))
                return JobFinding(
                    "gpu-share",
                    "hint",
                    f"{number(own / GB)} GB a GPU on {node.name}, whose share is"
                    f" {number(share / GB)} GB; above {number(limits.gpu_share_memory)} times that,"
                    f" GPUs are left without memory. Try --mem-per-gpu={less}"
                    f" (peak + {number(limits.mem_margin)} %).",
                )
    return None


def _names(job: JudgedJob, cards: list[tuple[NodeFigures, CardFigures]]) -> str:
    """Return a text that names cards: all, one, or a few with their nodes."""
    count = len(job.figures.cards)
    if len(cards) == count and count > 1:
        return f"All {count} GPUs"
    if len(cards) > 4:
        return f"{len(cards)} of {count} GPUs"
    names = [
        f"{card.card} of {node.name}" if len(job.figures.nodes) > 1 else card.card
        for node, card in cards
    ]
    if len(cards) == 1:
        return f"GPU {names[0]}"
    return f"GPUs {', '.join(names)}"
