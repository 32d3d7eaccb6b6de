"""Points of jobstats: counters of this server, its targets and the jobs on it.

A counter of a job is the sum of the deltas of its entries. It never falls when entries of its
clients appear, disappear or reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ccagent.agents.lustre.jobstats.series import KeptTotal, OperationCounters
from ccagent.records.points import NAME, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


BANDWIDTHS = {"lustre_read_bytes": "lustre_read_bw", "lustre_write_bytes": "lustre_write_bw"}
"""Names of rates in B/s, by counter; those of operations in 1/s end with `_rate`."""

_LARGEST = 2**63 - 1
_KEPT_FOR = 7 * 86400.0

Scope = tuple[str, str]
"""stype and stype-id; empty for the node."""

NODE: Scope = ("", "")


class JobTotals:
    """Sums by scope and metric. The total of a job or target without entries is kept.

    At most `limit` scopes are kept, the most recent ones, for a week.
    """

    def __init__(self, limit: int, totals: Iterable[KeptTotal] = ()) -> None:
        self._limit = limit
        self._totals: dict[Scope, dict[str, int]] = {}
        self._kept = {
            (one.stype, one.stype_id): one for one in sorted(totals, key=lambda one: one.seen)
        }
        self._growth: dict[Scope, dict[str, int]] = {}
        self._seen: set[Scope] = {NODE}

    def begin(self) -> None:
        """Start an observation."""
        self._growth = {}
        self._seen = {NODE}

    def see(self, target: str, job: str, since: dict[str, OperationCounters]) -> None:
        """Add the deltas of an entry. target, job: empty without one that is a valid tag."""
        scopes = [NODE]
        if target:
            scopes.append(("filesystem", target))
        if job:
            scopes.append(("job", job))
        self._seen.update(scopes)
        if not since:
            return
        metrics = growth(since)
        for scope in scopes:
            grown = self._growth.setdefault(scope, {})
            for name, value in metrics.items():
                grown[name] = grown.get(name, 0) + value

    def points(self, tags: dict[str, str], time: float, interval: float | None) -> Iterator[Point]:
        """Yield the counters. With an interval (s) since the previous observation, also rates.

        Jobs and targets without entries have no points. The node comes last: a store without
        `stype` keeps the last value of a name.
        """
        self._keep_unseen(time)
        for scope, totals in sorted(self._totals.items(), reverse=True):
            grown = self._growth.get(scope, {})
            for name, value in grown.items():
                totals[name] = totals.get(name, 0) + value
            stype, number = scope
            own = tags | {"stype": stype, "stype-id": number} if stype else tags
            for name, value in sorted(totals.items()):
                yield Point(name, own, min(value, _LARGEST), time)
                if interval:
                    rate = BANDWIDTHS.get(name, f"{name}_rate")
                    yield Point(rate, own, grown.get(name, 0) / interval, time)

    def kept(self, time: float) -> list[KeptTotal]:
        """Return all totals, for the next JobTotals."""
        live = [_pack(scope, time, totals) for scope, totals in self._totals.items()]
        return [*self._kept.values(), *live]

    def _keep_unseen(self, time: float) -> None:
        """Keep the totals of scopes without entries; restore kept totals of scopes with entries."""
        for scope in self._totals.keys() - self._seen:
            self._kept[scope] = _pack(scope, time, self._totals.pop(scope))
        for scope in self._seen - self._totals.keys():
            kept = self._kept.pop(scope, None)
            self._totals[scope] = _unpack(kept.counters) if kept is not None else {}
        for scope, kept in list(self._kept.items()):
            if len(self._kept) + len(self._totals) <= self._limit and kept.seen > time - _KEPT_FOR:
                break
            del self._kept[scope]


def _pack(scope: Scope, seen: float, totals: dict[str, int]) -> KeptTotal:
    # Limit to the largest integer of a point: MessagePack stores integers below 2^64 only.
    counters = {name: min(value, _LARGEST) for name, value in totals.items()}
    return KeptTotal(*scope, seen, msgspec.msgpack.encode(counters))


def _unpack(counters: bytes) -> dict[str, int]:
    try:
        return msgspec.msgpack.decode(counters, type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


def growth(since: dict[str, OperationCounters]) -> dict[str, int]:
    """Return the deltas of an entry by metric: `lustre_read_bytes`, `lustre_open`...

    Operations that are no valid metric name are omitted.
    """
    metrics: dict[str, int] = {}
    requests: dict[str, int] = {}
    for name, (samples, total, _) in since.items():
        if name in {"read_bytes", "write_bytes"}:
            metrics[f"lustre_{name}"] = total
            requests[f"lustre_{name.removesuffix('_bytes')}_requests"] = samples
        elif name in {"read", "write"}:
            metrics[f"lustre_{name}_requests"] = samples
        elif NAME.fullmatch(name):
            metrics[f"lustre_{name}"] = samples
    return requests | metrics
