"""GPUs under ccagent's own metric names: cards, and their allocation to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.allocations import idle_cards
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.sources import CardsOnNode
    from ccagent.machine.node import Node

_CARD = ("gpu", "uuid")
_INFO = gauge(
    "ccagent_gpu_info", "Always 1: vendor and model of a card.",
    *_CARD, "address", "vendor", "model", "driver",
)  # fmt: skip
_FAILING = gauge("ccagent_gpu_failing", "1 for a card that does not answer.", *_CARD)
_ENERGY = counter("ccagent_gpu_energy_joules_total", "Energy since the driver was loaded.", *_CARD)
_JOB = gauge("ccagent_gpu_job", "Always 1: the card is allocated to the job.", *_CARD, "jobid")
_ALLOCATED = gauge("ccagent_job_gpus", "Cards on this node allocated to the job.", "jobid")
_USED = gauge(
    "ccagent_job_gpus_used", "Cards of the job that its processes use at this moment.", "jobid"
)
_IDLE = gauge(
    "ccagent_job_gpus_idle", "Cards of the job that no process of it uses at this moment.", "jobid"
)
_VALUES = (
    ("ce_util", gauge("ccagent_gpu_utilization_ratio", "Share of time in which a kernel ran.",
                      *_CARD), 0.01),
    ("memory", gauge("ccagent_gpu_memory_used_bytes", "Memory in use.", *_CARD), 1024),
    ("temperature", gauge("ccagent_gpu_temperature_celsius", "Temperature.", *_CARD), 1),
    ("power", gauge("ccagent_gpu_power_watts", "Power.", *_CARD), 1),
    ("power_limit", gauge("ccagent_gpu_power_limit_watts", "Limit of the power.", *_CARD), 1),
    ("ce_clock", gauge("ccagent_gpu_clock_hertz", "Clock of the compute units.", *_CARD), 1e6),
    ("memory_clock", gauge("ccagent_gpu_memory_clock_hertz", "Clock of the memory.", *_CARD), 1e6),
    ("fan", gauge("ccagent_gpu_fan_ratio", "Speed of the fan.", *_CARD), 0.01),
)  # fmt: skip
_TOTAL = gauge("ccagent_gpu_memory_bytes", "Size of the memory.", *_CARD)


class GpuCollector(Collector):
    """Cards of all vendors, and their allocation to jobs."""

    name = "gpus"

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the cards through the vendors' libraries. Raise NotHereError without a card."""
        cards = self.sources.cards.get(node)
        reading = cards.reading
        labels = {card.index: (str(card.index), card.uuid) for card in reading.cards}
        infos: list[tuple[Labels, float]] = []
        totals: list[tuple[Labels, float]] = []
        for index, own in labels.items():
            known = cards.descriptions.get(index)
            if known is not None:
                words = (reading.addresses.get(index, ""), known.manufacturer, known.model)
                infos.append(((*own, *words, known.driver), 1))
                totals.append((own, known.memory * 1024))
        yield _INFO, infos
        yield _TOTAL, totals
        yield _FAILING, [(labels[card.index], int(bool(card.failing))) for card in reading.cards]
        working = [card for card in reading.cards if not card.failing]
        for field, family, factor in _VALUES:
            rows: list[tuple[Labels, float]] = []
            for card in working:
                if _lacks(cards, card.index, field):
                    continue
                value = getattr(card, field)
                rows.append((labels[card.index], value * factor if factor >= 1 else value / 100))
            yield family, rows
        yield (
            _ENERGY,
            [
                (labels[index], detail.value / 1000)
                for index, details in reading.details.items()
                for detail in details
                if detail.name == "energy" and index in labels
            ],
        )
        yield from self._of_jobs(cards, labels)

    def _of_jobs(
        self, cards: CardsOnNode, labels: dict[int, tuple[str, str]]
    ) -> Iterator[tuple[Family, Rows]]:
        pairs: list[tuple[Labels, float]] = []
        allocated: list[tuple[Labels, float]] = []
        used: list[tuple[Labels, float]] = []
        idle: list[tuple[Labels, float]] = []
        users = cards.used_by_job()
        for each in cards.allocations:
            own = (str(each.job),)
            pairs += [((*labels[card], *own), 1) for card in each.cards if card in labels]
            unused = idle_cards(each, users.get(each.job, {}), cards.reading)
            allocated.append((own, len(each.cards)))
            used.append((own, len(each.cards) - len(unused)))
            idle.append((own, len(unused)))
        yield _JOB, pairs
        yield _ALLOCATED, allocated
        yield _USED, used
        yield _IDLE, idle


def _lacks(cards: CardsOnNode, index: int, field: str) -> bool:
    """Return whether a card does not report a value. Its 0 then has no meaning."""
    reading = cards.reading
    if field == "ce_util":
        return index in reading.without_utilization or index in reading.instances
    if field == "memory":
        return index in reading.without_memory
    return index in reading.instances
