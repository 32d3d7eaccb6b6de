"""Rules for GPUs, and for interactive sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.views.amounts import clock, number, percent, plural
from ccagent.views.job.cpu_rules import ask_for_cores, find_mount_wait

if TYPE_CHECKING:
    from ccagent.views.job.figures import CardFigures, NodeFigures
    from ccagent.views.job.judged_job import FindingLevel, JudgedJob, Judgement

_FULL = 0.85
"""Use of a job's cores from which they are the limit of its GPUs."""

_LOADER = (0.8, 1.3)
"""Cores in use by a single process that prepares the input."""

_LARGE_SESSION, _SMALL_USE = 16, 0.25
"""Number of cores from which a session is large, and share of them that is a small use."""


def judge_idle_gpus(job: JudgedJob) -> Judgement | None:
    """Find cards with almost no use, alone or next to their peers, or none in a time at the end."""
    if not job.is_long:
        return None
    known = [(node, card) for node, card in job.figures.cards if card.utilization is not None]
    most = max((card.utilization or 0.0 for _, card in known), default=0.0)
    border = max(job.limits.gpu_idle, job.limits.node_idle * most / 100)
    unused = [
        (node, card)
        for node, card in known
        if (card.utilization or 0.0) <= border and job.has_use_of(card)
    ]
    if unused:
        return _never_used(job, unused, border)
    window = job.limits.gpu_idle_window
    idle = [(node, card) for node, card in known if card.idle_at_end >= window.seconds > 0]
    if not idle:
        return None
    shortest = min(card.idle_at_end for _, card in idle)
    since = max(0.0, job.figures.elapsed - shortest)
    verb = "has" if len(idle) == 1 else "have"
    end = "End the job" if job.figures.is_running else "End such a job"
    return "BAD", (
        f"{_names(job, idle)} {verb} been at 0 % for the last {clock(shortest)} (limit"
        f" {window}), idle since {clock(since)} after the start. {end} when its work on the GPU"
        " is done, or do what follows in a job without GPU (--dependency)."
    )


def _never_used(
    job: JudgedJob, unused: list[tuple[NodeFigures, CardFigures]], border: float
) -> Judgement:
    samples = min(card.samples for _, card in unused)
    most = max(card.utilization or 0.0 for _, card in unused)
    verb = "wasn't" if len(unused) == 1 else "weren't"
    text = (
        f"{_names(job, unused)} {verb} used: {percent(most)} % on average of"
        f" {plural(samples, 'sample')} ({clock(job.figures.elapsed)}), up to {number(border)} %"
        " counts as none."
    )
    left = len(job.figures.cards) - len(unused)
    if not left:
        text += " Ask for none (leave out --gpus), or find out why the program doesn't use it."
        return "BAD", text
    frees = f"frees {number(len(unused) * job.figures.elapsed / 3600)} GPU-h; the run time stays"
    ask = f"Ask for {plural(left, 'GPU')} (--gpus={left}), which {frees}"
    return "BAD", f"{text} {ask}. Or make the program use all."


def judge_gpu_input(job: JudgedJob) -> Judgement | None:
    """Find GPUs with a low use because their input does not come fast enough."""
    low, used, cores = _find_low_gpus(job), job.used_cores, job.cores
    if low is None:
        return None
    level, text = low
    if (found := find_mount_wait(job)) is not None:
        return (level, f"{text}, because {found[0]}. Read larger files, or copy them first.")
    if used is None or not cores:
        return None
    if used >= _FULL * cores:
        return level, (
            f"{text}, and its {plural(int(cores), 'core')} are {percent(100 * used / cores)} %"
            " busy: they prepare the input. Ask for more cores per GPU (--cpus-per-gpu), or prepare"
            " the data once, before the job."
        )
    use = job.figures.use
    if cores >= 2 * _LOADER[1] and use and _LOADER[0] <= used and use.high <= _LOADER[1]:
        return level, (
            f"{text}, and one of its {plural(int(cores), 'core')} is busy: one process prepares the"
            " input. Use several (num_workers of PyTorch's DataLoader)."
        )
    return None


def judge_low_gpus(job: JudgedJob) -> Judgement | None:
    """Find a low mean use of all cards without a known cause."""
    low = _find_low_gpus(job)
    if low is None:
        return None
    level, text = low
    count = len(job.figures.cards)
    fewer = "ask for fewer GPUs (--gpus)" if count > 1 else "ask for a smaller GPU (--gpus=TYPE:1)"
    return level, (
        f"{text}. Find out what the program waits for (input, CPU, small batches), or {fewer}."
    )


def _find_low_gpus(job: JudgedJob) -> Judgement | None:
    """Return level and text of a low mean use of all cards. Parts of cards are not judged."""
    used, limits = job.efficiency.gpu, job.limits
    if job.figures.has_gpu_share or used is None or not job.is_long:
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
    return level, f"{plural(used.nodes, 'GPU')}: {percent(used.percent)} % use on average; {border}"


def judge_few_sms(job: JudgedJob) -> Judgement | None:
    """Find cards that are always busy with few of their SMs, and with little power if it is known.

    The utilization is the share of time with any kernel: one small kernel makes it 100 %.
    """
    limits = job.limits
    if not job.is_long:
        return None
    found = [
        (node, card)
        for node, card in job.figures.cards
        if card.sm_active is not None
        and card.sm_active <= limits.gpu_sms_active
        and (card.utilization or 0.0) >= limits.gpu_sms_busy
        and not (
            card.power
            and card.power_limit
            and 100 * card.power / card.power_limit > limits.gpu_sms_power
        )
    ]
    if not found:
        return None
    _, card = min(found, key=lambda one: one[1].sm_active or 0.0)
    text = (
        f"{_names(job, found)}: {percent(card.utilization or 0.0)} % of the time with a kernel, but"
        f" {percent(card.sm_active or 0.0)} % of the SMs busy (up to"
        f" {number(limits.gpu_sms_active)} % is few)"
    )
    if card.power and card.power_limit:
        text += f" and {number(card.power)} of {number(card.power_limit)} W"
    return "hint", (
        f"{text}. Larger batches or several processes per GPU (MPS) use more of it; a MIG instance"
        " may be enough."
    )


def judge_spread_gpus(job: JudgedJob) -> Judgement | None:
    """Find GPUs that would fit on fewer nodes."""
    nodes = job.figures.nodes
    totals = [node.total_cards for node in nodes if node.total_cards]
    count = len(job.figures.cards)
    if len(totals) < len(nodes) or not count:
        return None
    enough = math.ceil(count / min(totals))
    if enough >= len(nodes):
        return None
    return "hint", (
        f"{count} GPUs on {len(nodes)} nodes, which have {min(totals)} each:"
        f" {plural(enough, 'node')} would do, and GPUs of one node exchange data faster. Ask for"
        f" --nodes={enough}."
    )


def judge_unknown_gpus(job: JudgedJob) -> Judgement | None:
    """Find cards whose utilization is unknown, as with MIG, or only partly known."""
    dumb = [card.card for _, card in job.figures.cards if card.utilization is None]
    if dumb:
        which = f"GPU {dumb[0]}" if len(dumb) == 1 else plural(len(dumb), "GPU")
        return "unknown", (
            f"the use of {which} is unknown: a card with MIG does not report it, or no sample has"
            " it. Unknown is not 0, so it is not judged."
        )
    thin = [card for _, card in job.figures.cards if not job.has_use_of(card)]
    if thin and job.is_long:
        which = f"GPU {thin[0].card}" if len(thin) == 1 else plural(len(thin), "GPU")
        least = min(card.coverage or 0.0 for card in thin)
        return "unknown", (
            f"the use of {which} is known of {percent(least)} % of the time; below"
            f" {number(job.limits.coverage)} % it is not judged."
        )
    if job.figures.gpus and not job.figures.cards and job.figures.samples:
        return "unknown", (
            f"the use of its {plural(job.figures.gpus, 'GPU')} is unknown: nothing reports its"
            " cards. Send events (agent jobs), or metrics of the agent sample."
        )
    return None


def judge_session(job: JudgedJob) -> Judgement | None:
    """Return the verdict on a session: a low use is expected, but not hours without any."""
    figures, limits, use = job.figures, job.limits, job.figures.use
    how = "has a terminal" if figures.has_terminal else f"is named {figures.name}"
    what = f"an interactive session (it {how})"
    cards = [card for _, card in figures.cards if card.utilization is not None]
    window = limits.gpu_idle_window if cards else limits.session_idle
    ask, cores = "", job.wanted_cores
    if use and cores and cores >= _LARGE_SESSION and use.peak <= _SMALL_USE * cores:
        ask = f" At most {number(use.peak)} cores were ever in use.{ask_for_cores(job)}"
    idle = min([use.idle if use else 0.0, *(card.idle_at_end for card in cards)])
    if job.is_long and idle >= window.seconds > 0:
        end = f"End it (scancel {figures.job})" if figures.is_running else "End sessions"
        return "BAD" if cards else "hint", (
            f"{what} without any work for the last {clock(idle)} (limit {window}). {end} when"
            f" nobody works in it.{ask}"
        )
    gpu, longest = job.efficiency.gpu, limits.gpu_low_interactive
    if gpu is not None and gpu.percent <= limits.gpu_low_bad and figures.elapsed > longest.seconds:
        return "BAD", (
            f"{what} with {plural(gpu.nodes, 'GPU')} at {percent(gpu.percent)} % for"
            f" {clock(figures.elapsed)}; above {longest}, up to {number(limits.gpu_low_bad)} % is"
            " BAD. Take a GPU for the time of the work."
        )
    if ask and figures.elapsed > limits.session_idle.seconds and not cards:
        return "hint", f"{what} with {plural(int(cores or 0), 'core')}.{ask}"
    return "ok", f"{what}: its low use is expected. End it when nobody works in it"


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
