"""Base of readers that run a program in the background, with a time limit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Generic, NamedTuple, TypeVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Reader, ReaderSettings, Scope
from ccagent.config.duration import Duration
from ccagent.machine.background import GRACE, PATIENCE, RepeatedCall, StopPipe
from ccagent.machine.counters import Rates

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_OUTPUT_LIMIT = 4 * 1024 * 1024


class ProgramReaderSettings(ReaderSettings, frozen=True, kw_only=True):
    """Keys shared by the tables of these readers."""

    every: Annotated[Duration, Meta(description="interval of the program; 0s: every sample")] = (
        Duration("1m")
    )
    time_limit: Annotated[Duration, Meta(description="time after which the program is killed")] = (
        Duration("30s")
    )

    def check_command(self, command: tuple[str, ...]) -> None:
        """Raise ValueError for a command without a program."""
        if command and not command[0]:
            raise ValueError("command: without a program")


P = TypeVar("P", bound=ProgramReaderSettings)


RunProgram = Callable[..., bytes]
"""`Node.run` with the limits of a reader."""


class ProgramResults(NamedTuple):
    """Result of a round of programs: values, time of the end, and problems."""

    moment: float
    values: list[Gauge | Count]
    problems: list[str]


class ProgramReader(Reader[P], Generic[P]):
    """Runs its program in the background; runs never overlap.

    A sample waits 0.1 s; the values of a slower program are in a later sample. Rates are computed
    over the time between the ends of two runs.
    """

    has_own_pace = True

    def __init__(self, settings: P | None = None) -> None:
        super().__init__(settings)
        self._call: RepeatedCall[ProgramResults] = RepeatedCall("", self.settings.every.seconds)
        self._rates: Rates[Scope] = Rates()
        self._stop = StopPipe()

    @abstractmethod
    def targets(self, node: Node) -> list[str]:
        """Return the targets of the program, such as mount points.

        Raise NotHereError on a machine without targets.
        """

    @abstractmethod
    def collect(self, run: RunProgram, targets: list[str]) -> tuple[list[Gauge | Count], list[str]]:
        """Run the programs with `run`, in a thread. Return values and partial problems.

        Raise CcagentError if there are no values.
        """

    def runs(self, targets: list[str]) -> int:
        """Return the number of programs that `collect` runs in sequence."""
        return max(1, len(targets))

    def read(self, node: Node) -> Iterable[Gauge]:
        """Start the program if due. Return the values of a finished run."""
        self.forget_errors()
        if not self.is_wanted:
            return []
        targets = self.targets(node)
        run = partial(
            node.run,
            time_limit=self.settings.time_limit.seconds,
            output_limit=_OUTPUT_LIMIT,
            stop=self._stop.descriptor,
        )

        def call() -> ProgramResults:
            values, problems = self.collect(run, targets)
            return ProgramResults(node.clock.monotonic(), values, problems)

        # The values of a program that ended between two samples are in the later sample.
        outcome = self._call.result(0.0, self.errors)
        self._call.begin(node.clock.time(), call, self.errors, is_due=self.is_patient)
        longest = (self.settings.time_limit.seconds + 2 * GRACE) * self.runs(targets)
        newer = self._call.result(longest if self.is_patient else PATIENCE, self.errors)
        outcome = newer or outcome
        if outcome is None:
            return []
        self.errors += outcome.problems
        return self._gauges(outcome)

    def close(self) -> None:
        """Kill the running program."""
        self._stop.close(self._call)

    def _gauges(self, outcome: ProgramResults) -> list[Gauge]:
        gauges = [each for each in outcome.values if isinstance(each, Gauge)]
        counts = [each for each in outcome.values if isinstance(each, Count)]
        rates = self._rates.of(counts, self.metrics, outcome.moment)
        return gauges + [Gauge(*each) for each in rates]
