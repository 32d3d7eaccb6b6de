"""Cache of parsed values of recurring texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST = 16_384

Text = TypeVar("Text")
Value = TypeVar("Value")


class Remembered(dict[Text, Value]):
    """Results of a function by text. At the maximum number of texts, all are dropped.

    Exceptions are not cached. This takes half the time of functools.lru_cache.
    """

    def __init__(self, function: Callable[[Text], Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: Text) -> Value:
        """Return and cache the result of the function. Raise as the function does."""
        value = self._function(text)
        if len(self) >= _LARGEST:
            self.clear()
        self[text] = value
        return value
