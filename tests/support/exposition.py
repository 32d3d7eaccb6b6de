"""Documents of Prometheus as the official library parses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NamedTuple

from prometheus_client import Metric

_PARSERS: dict[str, Callable[[str], Iterable[Metric]]] = {
    form: vars(import_module(module))["text_string_to_metric_families"]
    for form, module in (
        ("text", "prometheus_client.parser"),
        ("openmetrics", "prometheus_client.openmetrics.parser"),
    )
}
"""The parsers of the official library, of which one has no types."""

Series = tuple[str, frozenset[tuple[str, str]]]


class Known(NamedTuple):
    """What is known of a series: its value, and type and help of its family."""

    value: float
    kind: str
    help: str


def parse(document: str, form: str = "text") -> dict[Series, Known]:
    """Parse a document in the text format, or in OpenMetrics. A series may stand there once."""
    found: dict[Series, Known] = {}
    for family in _PARSERS[form](document):
        for sample in family.samples:
            name = sample.name
            if form == "text" and f"\n{name}" not in document and name.endswith("_total"):
                name = name.removesuffix("_total")  # which the library adds to each counter
            key = (name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            assert sample.timestamp is None
            found[key] = Known(float(sample.value), family.type, family.documentation)
    return found


def values(document: str, form: str = "text") -> dict[str, float]:
    """Return the values by series as Prometheus writes it, labels sorted."""
    found: dict[str, float] = {}
    for (name, labels), known in parse(document, form).items():
        pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels))
        found[f"{name}{{{pairs}}}" if pairs else name] = known.value
    return found
