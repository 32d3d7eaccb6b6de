"""Garbage collection of the stores: in short steps, and without the objects that stay."""

from __future__ import annotations

import gc

_THRESHOLDS = 20_000, 4, 4
"""New objects before a collection of the youngest generation, and the ratios of the older ones.

The oldest generation then has some 300,000 objects, which take about 30 ms. Lower values cost
throughput.
"""

_OLDEST = 2
_MANY = 50_000
"""Minimum number of survivors of a full collection that are excluded from further ones.

A frozen connection with a reference to itself would stay for ever, so few are frozen.
"""


def shorten_collections() -> None:
    """Exclude all present objects from collections, and many objects that survive a full one.

    A store has millions of objects: series and their names. One collection of them would hold up
    all requests for a second. A frozen object is still released at its last reference. A start
    leaves less than a thousand objects of garbage, so they are not collected before.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(_freeze)
    gc.enable()


def _freeze(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST and len(gc.get_objects(_OLDEST)) > _MANY:
        gc.freeze()
