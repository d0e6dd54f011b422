"""A worker's end of the wire: one DEALER socket to the frontend, which may die and come back.

Not responsible for what the messages mean (loop.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from tokenmill.core.wire import ToFrontend, ToWorker, decode_to_worker, encode

_log = logging.getLogger(__name__)
_RECONNECT_MS = 50


class Link(Protocol):
    """
    receive     wait up to timeout_s for messages and return all that are there; [] on time-out or wake-up
    was_lost    True once after each loss of the frontend's connection
    """

    def receive(self, timeout_s: float) -> list[ToWorker]: ...

    def send(self, message: ToFrontend) -> None: ...

    def was_lost(self) -> bool: ...

    def close(self, linger_s: float) -> None: ...


class ZmqLink:
    """`wake_fd`: a file descriptor that becomes readable when a wait should end early (signals)."""

    def __init__(
        self, endpoint: str, identity: bytes, wake_fd: int | None = None, drain_wake: Callable[[], None] | None = None
    ) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, 0),  # frames hold tokens: none may be dropped, and what runs bounds their number
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, _RECONNECT_MS),
        ):
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.IDENTITY, identity)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._wake_fd, self._drain_wake = wake_fd, drain_wake
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        if wake_fd is not None:
            self._poller.register(wake_fd, zmq.POLLIN)
        self._is_connected = self._was_lost = False

    def receive(self, timeout_s: float) -> list[ToWorker]:
        ready = dict(self._poller.poll(math.ceil(timeout_s * 1000)))
        if self._wake_fd in ready and self._drain_wake is not None:
            self._drain_wake()
        if self._monitor in ready:
            self._note_connection()
        return self._read() if self._socket in ready else []

    def _note_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._is_connected = event == zmq.EVENT_CONNECTED
            self._was_lost = self._was_lost or not self._is_connected

    def _read(self) -> list[ToWorker]:
        messages: list[ToWorker] = []
        while True:
            try:
                payload = self._socket.recv_multipart(zmq.NOBLOCK)[-1]
            except zmq.Again:
                return messages
            try:
                messages.append(decode_to_worker(payload))
            except msgspec.DecodeError as error:
                _log.error("dropped a message that is not of this protocol: %s", error)

    def send(self, message: ToFrontend) -> None:
        self._socket.send(encode(message))

    def was_lost(self) -> bool:
        was_lost, self._was_lost = self._was_lost, False
        return was_lost

    def close(self, linger_s: float) -> None:
        """Send what is left, if someone is there and takes it within linger_s."""
        self._note_connection()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(linger_s * 1000) if self._is_connected else 0)
        self._context.term()
