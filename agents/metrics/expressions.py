"""Metrics computed from other metrics: [agents.metrics.expressions.NAME].

An expression has numbers, names of metrics, + - * / and parentheses, and functions. Operators,
`abs` and functions of several operands combine values of the same scope. `sum`, `mean`, `min` and
`max` of one operand combine all its parts to a single value. A single value combines with any
scope.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.base import NODE, Metric, Scope, ScopeType
from ccagent.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ccagent.agents.metrics.outputs import Value
    from ccagent.agents.metrics.settings import ExpressionSettings

_LONGEST = 1000
_DEEPEST = 50
_ALLOWED = "numbers, names of metrics, + - * / ( ), sum mean min max abs"
Parts = dict[Scope, float]
Operand = float | Parts
"""One value for all scopes, or one value per scope; empty without a value."""

Tables = dict[str, Parts]


def _negative(number: float) -> float:
    return -number


def _quotient(left: float, right: float) -> float:
    return left / right


def _absolute(number: float) -> float:
    return abs(number)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _quotient,
}
_FUNCTIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "mean": _mean, "min": min, "max": max,
}  # fmt: skip
_FINEST: tuple[ScopeType, ...] = (
    "hwthread", "core", "llc", "memoryDomain", "die", "socket", "accelerator",
)  # fmt: skip
"""Types of parts, smallest first: a single value combines the smallest parts."""


class Expressions:
    """Expressions in the order of the configuration; each may use earlier ones.

    known: metrics of readers. is_open: commands or files may add metrics. metrics: metrics of the
    expressions. operands: metrics by expression. Raise ConfigurationError if one is invalid.
    """

    def __init__(
        self,
        expressions: Mapping[str, ExpressionSettings],
        known: Mapping[str, Metric],
        *,
        is_open: bool,
    ) -> None:
        self.metrics: dict[str, Metric] = {}
        self._compiled: list[tuple[str, Callable[[Tables], Operand]]] = []
        self.operands: dict[str, set[str]] = {}
        for name, settings in expressions.items():
            where = f"agents.metrics.expressions.{name}"
            if name in known:
                raise ConfigurationError(f"{where}: there is a metric of this name")
            compiler = _Compiler(where, {**known, **self.metrics}, is_open=is_open)
            compute = compiler.compile_text(settings.expression)
            self.operands[name] = compiler.names
            self._compiled.append((name, compute))
            self.metrics[name] = Metric(
                unit=settings.unit,
                type=compiler.type,
                description="",
                source=f"expression {' '.join(settings.expression.split())}",
                aggregation=settings.aggregation,
            )

    def values(self, values: Iterable[Value]) -> list[Value]:
        """Return the values of all expressions; none for a missing operand or x / 0.

        The node value comes last: the store keeps the last value of a name.
        """
        tables: Tables = {name: {} for names in self.operands.values() for name in names}
        for metric, number, scope in values:
            if metric in tables:
                # The product of integers may be too large for a float, that of floats is infinite.
                tables[metric][scope] = float(number)
        found: list[Value] = []
        for name, compute in self._compiled:
            result = compute(tables)
            all_parts: Parts = result if isinstance(result, dict) else {NODE: result}
            parts = {each: number for each, number in all_parts.items() if math.isfinite(number)}
            if name in tables:
                tables[name] = parts
            of_node = parts.get(NODE)
            found += [(name, number, scope) for scope, number in parts.items() if scope != NODE]
            if of_node is not None:
                found.append((name, of_node, NODE))
        return found


class _Compiler:
    """Compiler of an expression. names: metrics in it. type: type of the scopes of the result."""

    def __init__(self, where: str, known: Mapping[str, Metric], *, is_open: bool) -> None:
        self.names: set[str] = set()
        self._where = f"{where}: expression"
        self._known = known
        self._is_open = is_open
        self._types: set[ScopeType] = set()
        self._before = 0

    @property
    def type(self) -> ScopeType:
        """Common type of all operands by scope; `node` if they differ."""
        return next(iter(self._types)) if len(self._types) == 1 else "node"

    def compile_text(self, text: str) -> Callable[[Tables], Operand]:
        text = text.replace("\n", " ")
        if not text.isascii() or not text.isprintable() or len(text) > _LONGEST:
            raise ConfigurationError(
                f"{self._where}: only ASCII, without control characters, of {_LONGEST} at most"
            )
        # A leading space would be an indentation error.
        source = text.lstrip()
        self._before = len(text) - len(source)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source, mode="eval")
        except SyntaxError as error:
            column = self._before + max(1, min(len(source) + 1, error.offset or 1))
            raise ConfigurationError(f"{self._where}: column {column}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise ConfigurationError(f"{self._where}: too many parentheses") from error
        return self._node(tree.body, 0, is_by_scope=True)

    def _node(
        self, node: ast.expr, depth: int, *, is_by_scope: bool
    ) -> Callable[[Tables], Operand]:
        if depth > _DEEPEST:
            raise self._error(node, f"more than {_DEEPEST} operations in one another")
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._number(node, value)
            case ast.Name(id=name):
                return self._name(node, name, is_by_scope=is_by_scope)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                compute = self._node(inner, depth + 1, is_by_scope=is_by_scope)
                return lambda tables: _each(_negative, compute(tables))
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return self._node(inner, depth + 1, is_by_scope=is_by_scope)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
                apply = _OPERATORS[type(sign)]
                first = self._node(left, depth + 1, is_by_scope=is_by_scope)
                second = self._node(right, depth + 1, is_by_scope=is_by_scope)
                return lambda tables: _each(apply, first(tables), second(tables))
            case ast.Call(func=ast.Name(id=name), args=[_, *_] as operands, keywords=[]):
                return self._call(node, name, operands, depth, is_by_scope=is_by_scope)
            case _:
                raise self._error(node, f"only {_ALLOWED}")

    def _number(self, node: ast.expr, value: float) -> Callable[[Tables], Operand]:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._error(node, "a number that is too large")
        return lambda _: number

    def _name(self, node: ast.expr, name: str, *, is_by_scope: bool) -> Callable[[Tables], Operand]:
        metric = self._known.get(name)
        if metric is None and not self._is_open:
            raise self._error(node, f"{name!r} is no metric{nearest(name, [*self._known])}")
        self.names.add(name)
        if is_by_scope:
            self._types.add("node" if metric is None else metric.type)
        return lambda tables: tables[name]

    def _call(
        self, node: ast.expr, name: str, operands: list[ast.expr], depth: int, *, is_by_scope: bool
    ) -> Callable[[Tables], Operand]:
        is_abs = name == "abs"
        if (not is_abs and name not in _FUNCTIONS) or (is_abs and len(operands) > 1):
            raise self._error(node, f"{name} of {len(operands)} operands; only {_ALLOWED}")
        is_single = len(operands) == 1 and not is_abs
        computes = [
            self._node(each, depth + 1, is_by_scope=is_by_scope and not is_single)
            for each in operands
        ]
        if is_abs:
            return lambda tables: _each(_absolute, computes[0](tables))
        apply = _FUNCTIONS[name]
        if is_single:
            return lambda tables: _single(apply, computes[0](tables))
        return lambda tables: _each(
            lambda *numbers: apply([*numbers]), *[compute(tables) for compute in computes]
        )

    def _error(self, node: ast.expr, reason: str) -> ConfigurationError:
        column = self._before + node.col_offset + 1
        return ConfigurationError(f"{self._where}: column {column}: {reason}")


def _each(apply: Callable[..., float], *operands: Operand) -> Operand:
    """Apply `function` to the values of each common scope; a division by zero has no value."""
    tables = [operand for operand in operands if isinstance(operand, dict)]
    if not tables:
        try:
            return apply(*operands)
        except ZeroDivisionError:
            return {}
    found: Parts = {}
    for scope in tables[0]:
        if all(scope in table for table in tables[1:]):
            numbers = [each[scope] if isinstance(each, dict) else each for each in operands]
            try:
                found[scope] = apply(*numbers)
            except ZeroDivisionError:
                continue
    return found


def _single(apply: Callable[[list[float]], float], operand: Operand) -> Operand:
    """Combine the values of the smallest parts, else of the node, else of the node's stypes."""
    if not isinstance(operand, dict):
        return operand
    by_type: dict[ScopeType, list[float]] = {}
    others: list[float] = []
    for scope, number in operand.items():
        if scope.stype:
            others.append(number)
        else:
            by_type.setdefault(scope.type, []).append(number)
    for kind in (*_FINEST, "node"):
        if kind in by_type:
            return apply(by_type[kind])
    return apply(others) if others else {}
