"""A machine with cards, looked at by the agents."""

from __future__ import annotations

from typing import Any

from ccagent.agents.sonar.agent import SampleAgent, SampleSettings
from ccagent.agents.sysinfo.agent import SysinfoAgent, SysinfoSettings
from ccagent.machine.gpu.gpus import GpuReading
from ccagent.records.encoding import encode
from tests.support.gpu_libraries import Libraries, with_cards
from tests.support.schema import validate
from tests.support.tree import TreeNode


class Machine:
    """A node with cards, and agents that look at it; what they say is valid or an error."""

    def __init__(self, node: TreeNode, libraries: Libraries) -> None:
        self.node = node
        self.libraries = libraries
        self._agents: dict[str, SampleAgent] = {}

    def cards(self, driver: str, addresses: list[str]) -> None:
        """Have the driver be bound to these cards."""
        with_cards(self.node.path, driver, addresses)

    def agent(self, **settings: Any) -> SampleAgent:
        """Return the agent with these settings, the same one for the same settings."""
        key = repr(settings)
        if key not in self._agents:
            self._agents[key] = SampleAgent(SampleSettings(**settings), frozenset({"sonar"}))
        return self._agents[key]

    def sample(self, **settings: Any) -> dict[str, Any]:
        """Take a sample and give its attributes."""
        (message,) = encode(self.agent(**settings).sample(self.node), "sonar", self.node)
        attributes: dict[str, Any] = validate("SampleEnvelope", message.body)["data"]["attributes"]
        return attributes

    def gpus(self, **settings: Any) -> list[dict[str, Any]]:
        """Take a sample and give the cards."""
        cards: list[dict[str, Any]] = self.sample(**settings)["system"].get("gpus", [])
        return cards

    def reading(self) -> GpuReading:
        """Read the cards as the agents do."""
        gpus, errors = SampleSettings().make_gpus(self.node), list[str]()
        try:
            gpus.ask("read")
            reading = gpus.reading(errors)
        finally:
            gpus.close()
        assert errors == []
        return reading

    def processes(self, **settings: Any) -> dict[int, list[dict[str, Any]]]:
        """Take a sample and give what each process uses of the cards."""
        return {
            process["pid"]: process["gpus"]
            for job in self.sample(**settings)["jobs"]
            for process in job["processes"]
            if "gpus" in process
        }

    def described(self, **settings: Any) -> list[dict[str, Any]]:
        """Take a sysinfo envelope and give the cards."""
        agent = SysinfoAgent(SysinfoSettings(**settings), frozenset({"sonar"}))
        (message,) = encode(agent.sample(self.node), "sonar", self.node)
        attributes = validate("SysinfoEnvelope", message.body)["data"]["attributes"]
        cards: list[dict[str, Any]] = attributes.get("cards", [])
        return cards

    def close(self) -> None:
        """End the agents."""
        for agent in self._agents.values():
            agent.close()
