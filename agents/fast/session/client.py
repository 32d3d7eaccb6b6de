"""MQTT client (paho) for a persistent session with exactly-once delivery of answers.

An answer is sent at QoS 2 with a packet identifier that is kept on disk. So a new process continues
the handshake of a killed one. paho does not keep identifiers, so answers bypass paho's bookkeeping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from paho.mqtt import client as paho
from paho.mqtt.enums import MQTTErrorCode

from ccagent.transports.mqtt.client import AFTER_LOGIN, REFUSED, MqttClient

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_ANSWER = 60_000
_LAST_ANSWER = 65_535
_ANSWERS = frozenset({int(paho.PUBACK), int(paho.PUBREC), int(paho.PUBCOMP)})
WANTED = AFTER_LOGIN | {int(paho.PUBLISH), int(paho.SUBACK), int(paho.UNSUBACK)}
"""Types of packets that a broker may send to a client with subscriptions at QoS 1."""


class AnswerReply(NamedTuple):
    """The broker's reply to an answer. is_released: PUBREC at QoS 2, the broker has the answer."""

    number: int
    is_released: bool
    reason: int


class SubscribingClient(MqttClient):
    """Receives subscribed messages, and sends answers outside of paho's bookkeeping."""

    on_reply: Callable[[AnswerReply], None] | None = None

    def send_answer(
        self, number: int, topic: str, payload: bytes, qos: int, *, repeats: bool
    ) -> bool:
        """Send an answer with its identifier; return whether there is a connection."""
        code = self._send_publish(number, topic.encode(), payload, qos, retain=False, dup=repeats)
        return code == MQTTErrorCode.MQTT_ERR_SUCCESS

    def release_answer(self, number: int) -> bool:
        """Send PUBREL: the broker then delivers the answer.

        Return whether there is a connection.
        """
        return self._send_pubrel(number) == MQTTErrorCode.MQTT_ERR_SUCCESS

    def _mid_generate(self) -> int:
        with self._mid_generate_mutex:
            self._last_mid = self._last_mid % (_FIRST_ANSWER - 1) + 1
            return self._last_mid

    def _packet_handle(self) -> MQTTErrorCode:
        packet: Any = self._in_packet
        kind, content = packet["command"] & 0xF0, bytes(packet["packet"])
        number = int.from_bytes(content[:2], "big")
        if kind in _ANSWERS and number >= _FIRST_ANSWER:
            reason = content[2] if len(content) > 2 else 0
            is_released = kind == paho.PUBREC and reason < REFUSED
            if self.on_reply is not None:
                self.on_reply(AnswerReply(number, is_released, reason))
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._packet_handle()


def next_number(before: int) -> int:
    """Return the packet identifier after the identifier `before`."""
    return before + 1 if _FIRST_ANSWER <= before < _LAST_ANSWER else _FIRST_ANSWER
