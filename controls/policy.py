"""The policy of the node: settable controls, permitted senders, limits."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from ccagent.controls.control import DEVICE_TYPES, Control, shortened
from ccagent.controls.settings import AllowSettings, ControlsSettings, all_senders
from ccagent.errors import ControlError

_MINUTE = 60.0
_SHARE_OF_OTHERS = 10
_ROOT = "root on this node"


class RequestSender(NamedTuple):
    """The sender of a request. identities: in the form of `from`. is_root: root of this node."""

    name: str
    identities: frozenset[str] = frozenset()
    is_root: bool = False


class Policy:
    """The policy in [controls]. It does not access the machine."""

    def __init__(self, settings: ControlsSettings) -> None:
        self._settings = settings

    def lease(self, control: Control) -> float:
        """Return the seconds until a value is restored; 0 for never."""
        rule = self._settings.allow.get(control.full_name)
        return rule.lease.seconds if rule is not None and rule.lease is not None else 0.0

    def allows(self, name: str) -> bool:
        """Return whether any sender may set a control."""
        return name in self._settings.allow

    def check_get(self) -> None:
        """Raise ControlError if the policy permits no GET."""
        if not self._settings.get:
            raise ControlError("the policy of this node answers no GET (get = false)")

    def check_put(self, control: Control, text: str, sender: RequestSender) -> None:
        """Raise ControlError if a sender may not set a control to this canonical value."""
        name = control.full_name
        rule = self._settings.allow.get(name)
        if rule is None:
            raise ControlError(f"{name}: the policy of this node does not allow to set it")
        self.check_sender(sender, rule.senders, name)
        if rule.device_types and control.device_type not in {
            DEVICE_TYPES[each] for each in rule.device_types
        }:
            raise ControlError(
                f"{name}: the policy allows it for {', '.join(rule.device_types)} only"
            )
        reason = _refusal(control, text, rule)
        if reason:
            raise ControlError(f"{name}: the policy refuses it: {reason}")

    def check_restore(self, name: str, sender: RequestSender) -> None:
        """Raise ControlError if a sender may not restore a control.

        The senders in `from` of [controls] may; if it is empty, the senders that may set the
        control.
        """
        rule = self._settings.allow.get(name)
        senders = self._settings.senders or (() if rule is None else rule.senders)
        self.check_sender(sender, senders, f"restore {name}")

    def check_sender(
        self, sender: RequestSender, senders: tuple[str, ...] | None, what: str
    ) -> None:
        """Raise ControlError unless the sender is root on this node, or may set controls."""
        named = senders or self._settings.senders
        if sender.is_root or not named or not sender.identities.isdisjoint(named):
            return
        raise ControlError(f"{what}: the policy refuses this sender ({sender.name})")


def _refusal(control: Control, text: str, rule: AllowSettings) -> str:
    """Return the reason why a rule does not allow a canonical value, or ""."""
    if rule.values:
        for allowed in rule.values:
            try:
                if control.parse(allowed) == text:
                    return ""
            except ControlError:
                continue  # the value in the policy is invalid for this control
        return f"{shortened(text)} is none of {', '.join(rule.values)}"
    if control.kind in {"integer", "real"}:
        if rule.min is None or rule.max is None:
            return "it names neither values nor a range"
        if not rule.min <= float(text) <= rule.max:
            return f"{text} is not between {rule.min:g} and {rule.max:g}"
        return ""
    return "" if control.kind == "boolean" else "it names no values"


class RateLimit:
    """A limit of `most` events per minute. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._times: deque[float] = deque(maxlen=most)
        self._lock = threading.Lock()

    def take(self, now: float) -> bool:
        """Count an event at this time. Return False if the limit is exceeded."""
        with self._lock:
            if self.is_spent(now):
                return False
            self._times.append(now)
            return True

    def is_spent(self, now: float) -> bool:
        """Return whether the limit is reached."""
        return len(self._times) >= self.most and self._times[0] > now - _MINUTE


class SenderLimits:
    """A limit of events per minute for each sender, so that no sender spends another's.

    Each identity in the policy has `most`, and root of this node. All other senders share a tenth:
    they may set nothing. If some control may be set by all, they share `most`.
    """

    def __init__(self, settings: ControlsSettings, most: int) -> None:
        is_open = any(not (r.senders or settings.senders) for r in settings.allow.values())
        self._others = RateLimit(most if is_open else max(1, most // _SHARE_OF_OTHERS))
        self._limits = {each: RateLimit(most) for each in (_ROOT, *all_senders(settings))}

    def identity(self, sender: RequestSender) -> str:
        """Return the identity whose limit a sender has; "" for the shared one."""
        if sender.is_root:
            return _ROOT
        # "user:..." before "key:..." and "account:...": any fixed order will do.
        return max(sender.identities & self._limits.keys(), default="")

    def find(self, sender: RequestSender) -> RateLimit:
        """Return the limit of a sender."""
        return self._limits.get(self.identity(sender), self._others)
