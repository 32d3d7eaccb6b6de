"""Rules for cores and nodes: what a job waited for comes first, then what it did not use."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ccagent.views import amounts
from ccagent.views.amounts import clock, number, percent, plural
from ccagent.views.job.mounts import PORTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.views.job.figures import NodeFigures
    from ccagent.views.job.judged_job import FindingLevel, JudgedJob, Judgement

_MB = 1e6
_BETTER_FILES = "Use larger blocks, or copy the data to a local disk first"

_AT_MEMORY_SPEED = 1e9
"""B/s of a task in its calls from which the page cache answers, so that nothing waits."""

_MEASURE = "`ccagent kernel load --io-time` and the agent jobio measure files and network"

_SMALL_ASK, _ROUNDING = 0.05, 0.25
"""Share of the high use, and maximum of cores, that a request may be below it."""

_BUSY, _HALF = 0.8, 0.5
"""Use of the busiest node from which its rank is full, and maximum of the others relative to it."""

_SERIAL_PART = 0.2
"""Share of the time with one core from which the serial part is a cause."""

_ONE_CORE = 1.3
"""Maximum of cores in use at nearly all times that count as one."""


class LowUse(NamedTuple):
    """A low CPU use. ask: the request that would do, with its effect; empty if it needs all."""

    level: FindingLevel
    text: str
    ask: str


def find_low_use(job: JudgedJob) -> LowUse | None:
    """Return the low CPU use of a job without GPUs; None if it is good, unknown or explained.

    A job that waits for memory has another finding.
    """
    used, limits, cores = job.efficiency.cpu, job.limits, job.cores
    if used is None or not job.is_long or job.has_gpus or job.lacks_memory:
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
    of_wanted = f" of {plural(int(wanted), 'core')}" if wanted else ""
    return LowUse(level, f"{percent(share)} % CPU use{of_wanted}; {border}", ask_for_cores(job))


def ask_for_cores(job: JudgedJob) -> str:
    """Return the request for the cores in use at nearly all times; empty if all are needed."""
    use, cores, wanted = job.figures.use, job.cores, job.wanted_cores
    if use is None or cores is None or wanted is None:
        return ""
    enough = max(1, math.ceil(use.high - min(_SMALL_ASK * use.high, _ROUNDING)))
    if enough >= wanted:
        return ""
    option = "--ntasks or --cpus-per-task" if enough > 1 else "--cpus-per-task=1"
    return (
        f" Ask for {plural(enough, 'core')} ({option}): in {number(100 * use.quantile)} % of the"
        f" time at most {number(use.high)} were in use. That frees"
        f" {amounts.core_time((cores - enough) * job.figures.elapsed)}; the run time stays within"
        " 5 %."
    )


Cause = tuple[str, str]
"""What explains a low use, empty if nothing does, and what to do."""


def _explains_low_use(
    find: Callable[[JudgedJob], Cause | None],
) -> Callable[[JudgedJob], Judgement | None]:
    """Return the rule that finds a cause of a low CPU use, and names both and the request."""

    def judge(job: JudgedJob) -> Judgement | None:
        low = find_low_use(job)
        found = find(job) if low is not None else None
        if low is None or found is None:
            return None
        evidence = f"{found[0]} ({low.text})" if found[0] else low.text
        return low.level, f"{evidence}. {found[1]}{low.ask}"

    return judge


def find_mount_wait(job: JudgedJob) -> tuple[str, float] | None:
    """Return the text on the mount that a job waited for, and the percentage of its tasks' time.

    None if calls take little time, are as fast as memory, or are not measured.
    """
    mounts = [one for one in job.mounts.mounts if one.busy]
    used = job.efficiency.cpu
    if not mounts or used is None:
        return None
    most = max(mounts, key=lambda one: one.busy or 0.0)
    busy = most.busy or 0.0
    share = 100 * busy / (busy + used.used)
    if share < job.limits.wait_share or (most.read + most.written) / busy >= _AT_MEMORY_SPEED:
        return None
    return (
        f"it waited for {most.point} ({most.type}): {number(most.latency or 0.0)} ms a read or"
        f" write, {percent(share)} % of its tasks' time (from {number(job.limits.wait_share)} % on"
        f" it counts), {number(busy / job.figures.elapsed)} tasks at a time"
    ), share


@_explains_low_use
def judge_mount_wait(job: JudgedJob) -> Cause | None:
    """Find jobs whose tasks waited for reads and writes on a mount."""
    found = find_mount_wait(job)
    if found is None:
        return None
    return found[0], f"{_BETTER_FILES}: it can save up to {percent(found[1])} % of the run time."


@_explains_low_use
def judge_file_wait(job: JudgedJob) -> Cause | None:
    """Find jobs that waited for block I/O, or moved so many bytes that files are the likely cause.

    The pressure of the control group counts block I/O.
    """
    limits, nodes = job.limits, job.figures.nodes
    worst = max(nodes, key=lambda node: node.io_pressure or 0.0)
    waited = worst.io_pressure or 0.0
    if waited >= limits.wait_pressure:
        border = f"from {number(limits.wait_pressure)} % on it counts"
        where = f"a task waited for I/O in {percent(waited)} % of the time on {worst.name}"
        return f"{where}, {border}", f"{_BETTER_FILES}."
    mounts = job.mounts.mounts
    if any(one.busy for one in mounts):
        return None  # the times of its calls are measured, and short
    read = max(sum(one.read for one in mounts), sum(node.io_read or 0.0 for node in nodes))
    written = max(sum(one.written for one in mounts), sum(node.io_written or 0.0 for node in nodes))
    rate = (read + written) / _MB / job.figures.elapsed / len(nodes)
    if rate < limits.wait_rate:
        return None
    moved = f"{amounts.short_size(read)}B read and {amounts.short_size(written)}B written"
    border = f"from {number(limits.wait_rate)} on files are the likely cause"
    measure = "`ccagent kernel load --io-time` measures how long a call takes"
    return f"{moved}, {number(rate)} MB/s a node: {border}", f"{_BETTER_FILES}. {measure}."


@_explains_low_use
def judge_metadata_wait(job: JudgedJob) -> Cause | None:
    """Find jobs with a low use that do many metadata operations."""
    most = max(job.mounts.mounts, key=lambda one: one.metadata, default=None)
    rate = most.metadata / job.figures.elapsed / len(job.figures.nodes) if most else 0.0
    if most is None or rate < job.limits.wait_metadata:
        return None
    what = f"{number(rate)} metadata operations (open, stat, create) a second and node on"
    border = f"from {number(job.limits.wait_metadata)} on it counts"
    advice = "Keep small files in one archive, or work on a local disk."
    return f"{what} {most.point} ({most.type}), {border}", advice


@_explains_low_use
def judge_network_wait(job: JudgedJob) -> Cause | None:
    """Find jobs with a low use that send or receive much through sockets or ports."""
    sums = {True: 0, False: 0}  # traffic through the ports of a node includes that of sockets
    for one in job.mounts.network:
        if not one.is_loopback:
            sums[one.protocol == PORTS] += max(one.received, one.sent)
    rate = max(sums.values()) / _MB / job.figures.elapsed / len(job.figures.nodes)
    if rate < job.limits.wait_network:
        return None
    border = f"from {number(job.limits.wait_network)} on it counts"
    advice = "Exchange fewer messages, check that MPI uses the fast network, or use fewer nodes."
    return f"{number(rate)} MB/s a node through the network, {border}", advice


def judge_unused(job: JudgedJob) -> Judgement | None:
    """Find jobs with almost no CPU time on all nodes."""
    limit, elapsed, nodes = job.limits.cpu_zero, job.figures.elapsed, job.figures.nodes
    known = [node for node in nodes if node.cpu_seconds is not None]
    if not job.is_long or not known or len(known) < len(nodes) or job.lacks_memory:
        return None
    if any((card.utilization or 0.0) > job.limits.gpu_idle for _, card in job.figures.cards):
        return None
    most = max(node.cpu_seconds or 0.0 for node in known)
    if 100 * most / elapsed > limit:
        return None
    where = "The job" if len(nodes) == 1 else f"None of the {len(nodes)} nodes"
    does = "has used" if len(nodes) == 1 else "has worked: at most"
    end = f", or end it (scancel {job.figures.job})" if job.figures.is_running else ""
    return "BAD", (
        f"{where} {does} {number(most)} s of CPU time in {clock(elapsed)}; up to {number(limit)} %"
        f" of one core counts as none. Look at its output for what it waits for{end}. {_MEASURE}."
    )


def judge_unused_nodes(job: JudgedJob) -> Judgement | None:
    """Find nodes that did nothing, compared with the busiest node of the same job."""
    limit, nodes = job.limits.node_idle, job.figures.nodes
    uses = {
        node.name: use
        for node in nodes
        if (use := _use_of(job, node)) is not None and (job.is_partial or job.has_samples_of(node))
    }
    most = max(uses.values(), default=0.0)
    unused = [name for name, use in uses.items() if 100 * use <= limit * most]
    if not job.is_long or not unused or not most or any(node.cards for node in nodes):
        return None
    names = ", ".join(unused[:4]) + (", ..." if len(unused) > 4 else "")
    left = len(nodes) - len(unused)
    idle = [node.cores or 0.0 for node in nodes if node.name in unused]
    frees = amounts.core_time(sum(idle) * job.figures.elapsed)
    return "BAD", (
        f"{plural(len(unused), 'node')} of {len(nodes)} did nothing ({names}): at most"
        f" {percent(100 * max(uses[name] for name in unused))} % of their cores in use, up to"
        f" {number(limit)} % of the busiest node counts as nothing. Ask for"
        f" {plural(left, 'node')} (--nodes={left}), which frees {frees}; the run time stays. Or"
        " start the program on all of them (srun, mpirun)."
    )


def _use_of(job: JudgedJob, node: NodeFigures) -> float | None:
    """Return the mean share of a node's cores in use; None if unknown."""
    if node.cpu_seconds is None or not node.cores or not job.figures.elapsed:
        return None
    return node.cpu_seconds / node.cores / job.figures.elapsed


def judge_early_end(job: JudgedJob) -> Judgement | None:
    """Find jobs without GPUs in which almost nothing happened in a long time before the end."""
    use, elapsed = job.figures.use, job.figures.elapsed
    if use is None or not job.is_long or job.has_gpus or job.lacks_memory or not job.ends_quiet:
        return None
    low = find_low_use(job)
    text = (
        f"up to {number(use.high)} cores in use until {clock(elapsed - use.quiet)}, then"
        f" {amounts.cores(use.quiet_cores)} for the last {clock(use.quiet)} of {clock(elapsed)}"
    )
    if job.figures.state == "TIMEOUT":
        return "BAD", (
            f"{text}, up to its time limit: it hung, or its work had ended. More time does not"
            " help; look at its output of that moment."
        )
    idle = ((job.cores or use.high) - math.ceil(use.quiet_cores)) * use.quiet
    return low.level if low is not None else "hint", (
        f"{text}: the parallel work ended before the job. End the script with it, or do the rest in"
        f" a job of its own with fewer cores (--dependency). That frees"
        f" {amounts.core_time(max(0.0, idle))}; the run time stays."
    )


@_explains_low_use
def judge_one_rank(job: JudgedJob) -> Cause | None:
    """Find jobs in which one node is full and the others wait for it."""
    known = {
        node.name: use for node in job.figures.nodes if (use := _use_of(job, node)) is not None
    }
    if len(known) < 2:
        return None
    first = max(known, key=lambda name: known[name])
    others = median(use for name, use in known.items() if name != first)
    if known[first] < _BUSY or others > _HALF * known[first]:
        return None
    left = 100 * sum(known.values()) / len(known) / known[first]
    rest = f"the other {plural(len(known) - 1, 'node')} {percent(100 * others)} %"
    advice = f"Divide the work evenly: balanced, it takes {percent(left)} % of the time."
    return f"one rank: {first} is {percent(100 * known[first])} % busy, {rest} and wait", advice


@_explains_low_use
def judge_serial_part(job: JudgedJob) -> Cause | None:
    """Find jobs that are parallel for a part of the time, and have the work of one core else."""
    use = job.figures.use
    if use is None or use.serial < _SERIAL_PART:
        return None
    share = f"at most one core in use in {percent(100 * use.serial)} % of the time"
    advice = "Do that part in parallel too, or in a job of its own with one core (--dependency)."
    return f"its serial part: {share}, up to {number(use.high)} in the rest", advice


@_explains_low_use
def judge_serial(job: JudgedJob) -> Cause | None:
    """Find jobs with the work of one core on several cores."""
    used, limits, cores, use = job.used_cores, job.limits, job.cores, job.figures.use
    if used is None or cores is None or len(job.figures.nodes) != 1:
        return None
    if (job.wanted_cores or cores) <= 1:
        return None
    if not limits.serial_from < used < limits.serial_to or (use and use.high > _ONE_CORE):
        return None
    border = f"between {number(limits.serial_from)} and {number(limits.serial_to)} counts as one"
    advice = "Start the program with threads." if use else "Ask for --cpus-per-task=1."
    return f"one core's work on {number(cores)}: {amounts.cores(used)}, {border}", advice


@_explains_low_use
def judge_low_cpu(job: JudgedJob) -> Cause | None:
    """Find a low CPU use without a known cause."""
    if any(one.busy for one in job.mounts.mounts):
        return "", "It did not wait for files, the network or memory."
    return "", f"Find out what it waits for: {_MEASURE}."


def judge_oversubscription(job: JudgedJob) -> Judgement | None:
    """Find a load above the cores, on nodes of its own."""
    limit = job.limits.load_per_core
    for node in job.figures.nodes if job.is_long and job.figures.is_exclusive else ():
        if node.cores and node.load is not None and node.load > limit * node.cores:
            return "hint", (
                f"{number(node.load)} load on {number(node.cores)} cores of {node.name}, above"
                f" {number(limit)} a core: they take turns. Start"
                f" {plural(int(node.cores), 'thread')} (OMP_NUM_THREADS), or ask for more"
                " (--cpus-per-task)."
            )
    return None


def judge_gpu_share(job: JudgedJob) -> Judgement | None:
    """Find nodes where a job has more cores per GPU than the node has."""
    limits = job.limits
    for node in job.figures.nodes:
        cards, all_cards = len(node.cards), node.total_cards
        if not cards or not all_cards or cards >= all_cards or not node.cores:
            continue
        share, own = (node.total_cores or math.inf) / all_cards, node.cores / cards
        if own > limits.gpu_share_cores * share:
            fair = max(1, int(share * cards))
            return "hint", (
                f"{number(own)} cores a GPU on {node.name}, whose share is {number(share)}; above"
                f" {number(limits.gpu_share_cores)} times that, GPUs are left without cores. Ask"
                f" for {plural(fair, 'core')} there (--cpus-per-gpu={max(1, int(share))})."
            )
    return None


def judge_fragmentation(job: JudgedJob) -> Judgement | None:
    """Find jobs without GPUs on more nodes than needed."""
    nodes, limits = job.figures.nodes, job.limits
    known = [node for node in nodes if node.cores and node.total_cores]
    sized = [node for node in nodes if node.memory_peak is not None and node.total_memory]
    if len(nodes) < 2 or job.has_gpus or len(known) < len(nodes) or not sized:
        return None
    cores = sum(node.cores or 0.0 for node in known)
    largest = min(node.total_cores or 0.0 for node in known)
    share = cores / sum(node.total_cores or 0.0 for node in known)
    fullest = max((node.memory_peak or 0.0) / (node.total_memory or 1.0) for node in sized)
    if share >= limits.fragmented_cores or fullest >= limits.fragmented_memory:
        return None
    most = min(node.total_memory or 0.0 for node in sized)
    needed = sum(node.memory_peak or 0.0 for node in sized)
    enough = max(math.ceil(cores / largest), math.ceil(needed / (limits.fragmented_memory * most)))
    if enough >= len(nodes):
        return None
    return "BAD" if len(nodes) >= 2 * enough else "hint", (
        f"{number(cores)} cores on {len(nodes)} nodes: {percent(100 * share)} % of each, below"
        f" {number(100 * limits.fragmented_cores)} %, and at most {percent(100 * fullest)} % of the"
        f" memory (limit {number(100 * limits.fragmented_memory)} %). {plural(enough, 'node')}"
        f" would do: --nodes={enough}."
    )
