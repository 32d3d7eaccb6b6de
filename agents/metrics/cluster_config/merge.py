"""Merge of cluster.json of several nodes: nodes with equal facts form a subcluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import ConfigurationError
from ccagent.machine.hostlist import compact, expand

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIMITS = ("peak", "normal", "caution", "alert")


def merge_clusters(clusters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the merged cluster. Raise ConfigurationError for contradictions.

    A metric that a subcluster lacks is removed there. Different limits are set per subcluster.
    """
    names = {cluster["name"] for cluster in clusters}
    if len(names) != 1:
        raise ConfigurationError(f"the files are of several clusters: {', '.join(sorted(names))}")
    groups: list[tuple[dict[str, Any], dict[str, dict[str, Any]], set[str]]] = []
    for cluster in clusters:
        metrics = {metric["name"]: metric for metric in cluster["metricConfig"]}
        if len(cluster["subClusters"]) != 1:
            raise ConfigurationError(
                "a file has several subclusters; merge the outputs of all nodes at once"
            )
        (subcluster,) = cluster["subClusters"]
        facts = _without(subcluster, "name", "nodes")
        hosts = set(expand(subcluster["nodes"]))
        for known, of_known, nodes in groups:
            if known == facts and of_known == metrics:
                nodes.update(hosts)
                break
        else:
            groups.append((facts, metrics, hosts))
    subclusters = [
        {"name": "main" if len(groups) == 1 else f"part{number}",
         "nodes": ",".join(compact(nodes)), **facts}
        for number, (facts, _, nodes) in enumerate(groups, 1)
    ]  # fmt: skip
    parts = {
        each["name"]: metrics for each, (_, metrics, _) in zip(subclusters, groups, strict=True)
    }
    every = sorted({name for metrics in parts.values() for name in metrics})
    return {
        "name": names.pop(),
        "metricConfig": [_merge_metric(name, parts) for name in every],
        "subClusters": subclusters,
    }


def _merge_metric(name: str, parts: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return a metric of all subclusters, with the differences of each subcluster."""
    first = next(metrics[name] for metrics in parts.values() if name in metrics)
    own: list[dict[str, Any]] = []
    for part, metrics in parts.items():
        metric = metrics.get(name)
        if metric is None:
            own.append({"name": part, "remove": True})
            continue
        for key in ("unit", "timestep", "aggregation"):
            if metric[key] != first[key]:
                raise ConfigurationError(
                    f"{name}: nodes differ in {key}: {metric[key]} and {first[key]}; a cluster has"
                    " one, so configure them alike"
                )
        limits = {key: metric[key] for key in _LIMITS}
        if limits != {key: first[key] for key in _LIMITS}:
            own.append({"name": part, **limits})
    return first | ({"subClusters": own} if own else {})


def _without(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in keys}
