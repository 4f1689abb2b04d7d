"""Communication between workers that run at the same time: all-reduce of small arrays, and detection of lost workers.

LightGBM's own sockets do not notice a peer that dies (reads of a closed connection return nothing, for ever), and its
metrics are of the rows of one machine. So each worker has one more connection, to rank 0, which combines what all send.
"""

from __future__ import annotations

import contextlib
import hmac
import queue
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import LostWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray


HELLO = struct.Struct("<8s32sii")  # magic bytes, token, rank, number of workers
WELCOME = struct.Struct("<8s32s")  # magic bytes, token; sent back by the worker
HEADER = struct.Struct("<Bqq")  # kind of message, step, bytes that follow
MAGIC = b"trueup 1"
HEARTBEAT, SUM, MAX, GOODBYE = range(4)
HANDSHAKE_SECONDS = 5.0  # for each message of a handshake
RETRY_SECONDS = 0.05  # between attempts to connect to a worker that does not listen yet
CLOSE_SECONDS = 5.0  # for the other workers to close their connections first
MAX_MESSAGE_BYTES = 1 << 30
SILENT = "gave no sign of life"


@dataclass(frozen=True)
class Timeouts:
    """How long workers wait for each other, in seconds."""

    connect: float = 120.0  # for all workers to connect: one with more rows connects later
    heartbeat: float = 3.0  # between two heartbeats
    silent: float = 30.0  # without a heartbeat, after which a worker is lost: its machine may be down


DEFAULT_TIMEOUTS = Timeouts()


class Communicator:
    """The workers of one run, each of which holds some of the rows; by default this process holds all of them.

    All workers must make the same calls in the same order; all receive the same results, to the last bit. They connect to
    the worker of rank 0, which listens at ``hub``, and all know the ``token``. ``threads`` is the number of threads that
    this worker may use; 0 means one per core. ``addresses`` are the host and a free port of each worker, by rank, for the
    connections of the learner.

    ``on_loss`` is called with a message, in another thread, if a worker is lost. It must end the process if the main thread
    may be waiting elsewhere, since LightGBM cannot be interrupted. All-reduce calls raise `LostWorkerError` afterwards.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        hub: tuple[str, int] = ("", 0),
        token: str = "",
        on_loss: Callable[[str], None] = lambda _message: None,
        *,
        addresses: Sequence[tuple[str, int]] = (),
        threads: int = 0,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self.rank, self.size, self.threads, self.addresses = rank, size, threads, addresses
        self._on_loss, self._timeouts = on_loss, timeouts
        self._step = 0
        self._closed = threading.Event()
        self._peers: dict[int, _Peer] = {}
        if size == 1:
            return
        if rank == 0:
            connections = _accept_workers(hub, size, token.encode(), timeouts)
        else:
            connections = {0: _connect_to_hub(hub, rank, size, token.encode(), timeouts)}
        for peer_rank, connection in connections.items():
            connection.settimeout(timeouts.silent)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # messages are small, and all workers wait
            self._peers[peer_rank] = _Peer(peer_rank, connection)
        for peer in self._peers.values():
            threading.Thread(target=self._receive_messages, args=(peer,), daemon=True).start()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def all_reduce_sum(self, own: Any) -> FloatArray:
        """Add the arrays of all workers in the order of their ranks, so that all have the same sum to the last bit."""
        return self._all_reduce(SUM, own)

    def all_reduce_max(self, own: Any) -> FloatArray:
        """Return the elementwise maximum of the arrays of all workers; NaN where one is NaN."""
        return self._all_reduce(MAX, own)

    def close(self) -> None:
        """Wait for all workers, then disconnect."""
        if not self._closed.is_set():
            self._all_reduce(GOODBYE, np.zeros(1))
        self._closed.set()
        if self.rank == 0:  # closing a connection with unread messages would discard the goodbye on its way
            deadline = time.monotonic() + CLOSE_SECONDS
            for peer in self._peers.values():
                peer.closed.wait(max(deadline - time.monotonic(), 0.0))
        self.abort()

    def abort(self) -> None:
        """Disconnect at once: the others will report a lost worker."""
        self._closed.set()
        for peer in self._peers.values():
            peer.close()

    def _all_reduce(self, kind: int, own: Any) -> FloatArray:
        if self.size == 1:
            return np.asarray(own, np.float64)
        array = np.ascontiguousarray(own, np.float64)
        self._step += 1
        if self.rank:
            self._send(self._peers[0], kind, array.tobytes())
            return self._receive(self._peers[0], kind, array).reshape(np.shape(own))
        result = array.copy()
        for rank in sorted(self._peers):
            other = self._receive(self._peers[rank], kind, array)
            result = np.maximum(result, other) if kind == MAX else result + other
        body = result.tobytes()
        for peer in self._peers.values():
            self._send(peer, kind, body)
        return result.reshape(np.shape(own))

    def _receive(self, peer: _Peer, kind: int, like: FloatArray) -> FloatArray:
        """Return the array that a peer sent in this step; its ``kind`` and its size, that of ``like``, must match."""
        message = peer.messages.get()
        if isinstance(message, str):
            raise LostWorkerError(message, missed=True)
        other_kind, step, body = message
        if (other_kind, step, len(body)) != (kind, self._step, like.nbytes):
            raise AssertionError(
                f"workers are out of step: {(other_kind, step, len(body))} is not {(kind, self._step, like.nbytes)}"
            )
        return np.frombuffer(body, np.float64).reshape(like.shape).copy()

    def _send(self, peer: _Peer, kind: int, body: bytes) -> None:
        try:
            with peer.lock:
                peer.connection.sendall(HEADER.pack(kind, self._step, len(body)) + body)
        except OSError as error:
            self._report_loss(peer, error)

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(self._timeouts.heartbeat):
            for peer in self._peers.values():
                if not peer.lock.acquire(blocking=False):
                    continue  # a message is being sent, which serves as well
                try:
                    peer.connection.sendall(HEADER.pack(HEARTBEAT, 0, 0))
                except OSError as error:
                    self._report_loss(peer, error)
                finally:
                    peer.lock.release()

    def _receive_messages(self, peer: _Peer) -> None:
        try:
            while True:
                kind, step, size = HEADER.unpack(_read(peer.connection, HEADER.size))
                if kind == HEARTBEAT:
                    continue
                if kind not in (SUM, MAX, GOODBYE) or not 0 <= size <= MAX_MESSAGE_BYTES:
                    raise ConnectionError("it sent an unknown message")
                body = _read(peer.connection, size)
                peer.said_goodbye = kind == GOODBYE
                peer.messages.put((kind, step, body))
                if self.rank and peer.said_goodbye:
                    return
        except OSError as error:
            self._report_loss(peer, error)
        finally:
            peer.closed.set()

    def _report_loss(self, peer: _Peer, error: OSError) -> None:
        """Report a lost worker, unless it has said goodbye."""
        if peer.said_goodbye or self._closed.is_set():
            return
        silent = isinstance(error, TimeoutError)
        reason = f"{SILENT} for {self._timeouts.silent:g} s" if silent else f"is gone ({error})"
        message = f"worker {peer.rank + 1} of {self.size} {reason}"
        self._on_loss(message)
        for other in self._peers.values():
            other.messages.put(message)


SINGLE_PROCESS = Communicator()


class _Peer:
    """The worker at the other end of a connection."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.connection = rank, connection
        self.lock = threading.Lock()
        self.messages: queue.SimpleQueue[tuple[int, int, bytes] | str] = queue.SimpleQueue()
        self.said_goodbye = False
        self.closed = threading.Event()

    def close(self) -> None:
        """Close the connection, also while a thread reads from it."""
        with contextlib.suppress(OSError):  # closed by the other end
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def _read(connection: socket.socket, size: int) -> bytes:
    buffer = bytearray(size)
    view, position = memoryview(buffer), 0
    while position < size:
        count = connection.recv_into(view[position:])
        if not count:
            raise ConnectionError("it closed the connection")
        position += count
    return bytes(buffer)


class _Handshakes:
    """The connections of workers that have identified themselves; handshakes run in threads, so that none delays others."""

    def __init__(self, size: int, token: bytes) -> None:
        self.connections: dict[int, socket.socket] = {}
        self._size, self._token, self._open = size, token, True
        self._lock = threading.Lock()

    def missing(self, *, abort: bool) -> list[str]:
        """Return the numbers of workers not yet connected; if there are none, or if ``abort``, reject later connections."""
        with self._lock:
            missing = [str(rank + 1) for rank in range(1, self._size) if rank not in self.connections]
            self._open = bool(missing) and not abort
            for connection in self.connections.values() if missing and abort else ():
                connection.close()
        return missing

    def add(self, connection: socket.socket) -> None:
        """Read the handshake of a connection, and keep the connection if it is from a worker of this run."""
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            magic, token, rank, size = HELLO.unpack(_read(connection, HELLO.size))
            valid = magic == MAGIC and hmac.compare_digest(token, self._token) and size == self._size and 0 < rank < size
            if valid and self._open:  # a worker that misses the welcome does not confirm it, and connects again
                connection.sendall(WELCOME.pack(MAGIC, self._token))
                valid = _read(connection, WELCOME.size) == WELCOME.pack(MAGIC, self._token)
            with self._lock:
                if valid and self._open:
                    self.connections[rank] = connection
                else:
                    connection.close()
        except OSError:
            connection.close()


def _accept_workers(hub: tuple[str, int], size: int, token: bytes, timeouts: Timeouts) -> dict[int, socket.socket]:
    """Listen until all other workers are connected; return their connections by rank."""
    handshakes = _Handshakes(size, token)
    deadline = time.monotonic() + timeouts.connect
    with socket.create_server(hub) as server:
        server.settimeout(RETRY_SECONDS)
        while missing := handshakes.missing(abort=(late := time.monotonic() > deadline)):
            if late:
                who = f"worker {', '.join(missing)} of {size}"
                raise LostWorkerError(f"{who} did not connect within {timeouts.connect:g} s", missed=True)
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                threading.Thread(target=handshakes.add, args=(connection,), daemon=True).start()
    return handshakes.connections


def _connect_to_hub(hub: tuple[str, int], rank: int, size: int, token: bytes, timeouts: Timeouts) -> socket.socket:
    """Connect to the worker of rank 0, which may not listen yet."""
    deadline = time.monotonic() + timeouts.connect
    while True:
        connection = None
        try:
            connection = socket.create_connection(hub, timeout=HANDSHAKE_SECONDS)
            connection.sendall(HELLO.pack(MAGIC, token, rank, size))
            if (welcome := _read(connection, WELCOME.size)) == WELCOME.pack(MAGIC, token):
                connection.sendall(welcome)
                return connection
            raise ConnectionError("another program listens there")
        except OSError as error:
            if connection is not None:
                connection.close()
            if time.monotonic() > deadline:
                raise LostWorkerError(
                    f"worker 1, at {hub[0]}:{hub[1]}, could not be reached within {timeouts.connect:g} s ({error})",
                    missed=True,
                ) from error
            time.sleep(RETRY_SECONDS)
