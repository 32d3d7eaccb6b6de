"""Rules for the use of CPUs and GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ccagent.views import amounts
from ccagent.views.amounts import GB, clock, number, percent, plural, request_memory

if TYPE_CHECKING:
    from ccagent.views.job.figures import (
        CardFigures,
        FindingLevel,
        JudgedJob,
        Judgement,
        NodeFigures,
    )


def judge_unused_nodes(job: JudgedJob) -> Judgement | None:
    """Find nodes with almost no CPU time."""
    if not job.is_long:
        return None
    limit, elapsed = job.limits.cpu_zero, job.figures.elapsed
    known = [
        node
        for node in job.figures.nodes
        if node.cpu_seconds is not None and (job.is_partial or job.has_samples_of(node))
    ]
    unused = [node for node in known if 100 * (node.cpu_seconds or 0.0) / elapsed <= limit]
    if not unused:
        return None
    most = max(node.cpu_seconds or 0.0 for node in unused)
    text = f"{number(most)} s of CPU time in {clock(elapsed)}"
    border = f"up to {number(limit)} % of one core counts as none"
    if len(unused) == len(job.figures.nodes):
        where = "The job" if len(unused) == 1 else f"None of the {len(unused)} nodes"
        does = "has used" if len(unused) == 1 else "has worked: at most"
        return "BAD", (
            f"{where} {does} {text}; {border}. Look at its output for what it waits for, or end it"
            f" (scancel {job.figures.job})."
        )
    names = ", ".join(node.name for node in unused[:4]) + (", ..." if len(unused) > 4 else "")
    left = len(job.figures.nodes) - len(unused)
    return "BAD", (
        f"{plural(len(unused), 'node')} of {len(job.figures.nodes)} did nothing ({names}): at most"
        f" {text}; {border}. Ask for {plural(left, 'node')} (--nodes={left}), or start the program"
        " on all of them (srun, mpirun)."
    )


def judge_serial(job: JudgedJob) -> Judgement | None:
    """Find jobs with the CPU time of one core on several cores."""
    used, limits, cores = job.efficiency.cpu, job.limits, job.cores
    if used is None or cores is None or not job.is_long or job.has_gpus:
        return None
    if len(job.figures.nodes) != 1 or (job.wanted_cores or cores) <= 1:
        return None
    work = used.percent * cores / 100
    if not limits.serial_from < work < limits.serial_to:
        return None
    unused = amounts.core_time(used.total - used.used)
    return "BAD", (
        f"one core's work on {number(cores)}: {percent(used.percent)} % is {amounts.cores(work)}"
        f" (between {number(limits.serial_from)} and {number(limits.serial_to)} counts as one);"
        f" {unused} unused. Ask for --cpus-per-task=1, or start the program with"
        " threads."
    )


def judge_low_cpu(job: JudgedJob) -> Judgement | None:
    """Find a low CPU use of jobs without GPUs."""
    used, limits, cores = job.efficiency.cpu, job.limits, job.cores
    if used is None or not job.is_long or job.has_gpus:
        return None
    wanted = job.wanted_cores
    # The job can use at most the cores that it asked for.
    share = used.percent * cores / wanted if cores and wanted else used.percent
    level: FindingLevel
    if share < limits.cpu_low_bad:
        level, border = "BAD", f"below {number(limits.cpu_low_bad)} % is BAD"
    elif share <= limits.cpu_low_hint:
        level, border = "hint", f"up to {number(limits.cpu_low_hint)} % is low"
    else:
        return None
    of_wanted = f" of the {number(wanted)} cores asked for" if wanted and wanted != cores else ""
    target = number(limits.cpu_target)
    advice = "Find out what it waits for (files, network, other tasks)"
    if cores is not None and wanted is not None and cores > 1:
        enough = max(1, math.ceil(used.percent * cores / limits.cpu_target))
        if enough < wanted:
            advice = (
                f"Ask for {plural(enough, 'core')} (--ntasks or --cpus-per-task), or find out what"
                " it waits for"
            )
    return (
        level,
        f"{percent(share)} % CPU use{of_wanted}; {border}, the target is {target} %. {advice}.",
    )


def judge_oversubscription(job: JudgedJob) -> Judgement | None:
    """Find more running threads than cores, or on exclusive nodes a load above the cores."""
    limits = job.limits
    if not job.is_long:
        return None
    for node in job.figures.nodes:
        if not node.cores:
            continue
        for value, limit, thing in (
            (node.running_threads, limits.threads_per_core, "running threads"),
            (node.load if job.figures.is_exclusive else None, limits.load_per_core, "load"),
        ):
            if value is not None and value > limit * node.cores:
                return "hint", (
                    f"{number(value)} {thing} on {number(node.cores)} cores of {node.name}, above"
                    f" {number(limit)} a core: they take turns. Start"
                    f" {plural(int(node.cores), 'thread')} (OMP_NUM_THREADS), or ask for more"
                    " (--cpus-per-task)."
                )
    return None


def judge_early_end(job: JudgedJob) -> Judgement | None:
    """Find jobs without GPUs whose CPU use stopped long before their end."""
    if not job.is_long or job.has_gpus:
        return None
    known = [
        (node.cores_first, node.cores_last)
        for node in job.figures.nodes
        if node.cores_first is not None and node.cores_last is not None
    ]
    first, last = sum(one for one, _ in known), sum(one for _, one in known)
    limit = job.limits.ended_early
    if not known or first <= 0 or 100 * last / first >= limit:
        return None
    return "hint", (
        f"{amounts.cores(last)} in use in the last third of {clock(job.figures.elapsed)}, after"
        f" {number(first)} in the first (less than {number(limit)} %): the work ended before the"
        " job. End the script with it, or split the job (--dependency)."
    )


def judge_idle_gpus(job: JudgedJob) -> Judgement | None:
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
    return "BAD", (
        f"{_names(job, idle)} {verb} been at 0 % for the last {clock(shortest)} (limit"
        f" {window}), idle since {clock(since)} after the start. {end} when its work on the GPU"
        " is done, or do what follows in a job without GPU (--dependency)."
    )


def _never_used(
    job: JudgedJob, unused: list[tuple[NodeFigures, CardFigures]], count: int
) -> Judgement:
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
    return "BAD", text


def judge_low_gpus(job: JudgedJob) -> Judgement | None:
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
    return level, (
        f"{cards}: {percent(used.percent)} % use on average; {border}. Find out what the program"
        f" waits for (input, CPU, small batches), or {fewer}."
    )


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


def judge_gpu_share(job: JudgedJob) -> Judgement | None:
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
                return "hint", (
                    f"{number(own)} cores a GPU on {node.name}, whose share is {number(share)};"
                    f" above {number(limits.gpu_share_cores)} times that, GPUs are left without"
                    f" cores. Ask for {plural(fair, 'core')} there (--cpus-per-gpu="
                    f"{max(1, int(share))})."
                )
        if node.memory_limit and node.total_memory:
            share, own = node.total_memory / all_cards, node.memory_limit / cards
            needed = (node.memory_peak or 0) * (1 + limits.mem_margin / 100)
            if own > limits.gpu_share_memory * share and needed < node.memory_limit:
                less = request_memory(max(needed / cards, GB / 10))
                return "hint", (
                    f"{number(own / GB)} GB a GPU on {node.name}, whose share is"
                    f" {number(share / GB)} GB; above {number(limits.gpu_share_memory)} times that,"
                    f" GPUs are left without memory. Try --mem-per-gpu={less}"
                    f" (peak + {number(limits.mem_margin)} %)."
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
