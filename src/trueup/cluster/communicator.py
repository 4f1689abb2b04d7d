"""A circle of processes that work together: small sums that everyone hears, and the news that one of them was lost.

LightGBM's own sockets do not notice a peer that dies (a closed connection is read as nothing, for ever), and its metrics
are those of one machine. So the processes hold hands beside them, over one connection each to the first of them.
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
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.errors import LostWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray


HELLO = struct.Struct("<8s32sii")  # a mark, the word of the job, who comes, how many there are
WELCOME = struct.Struct("<8s32s")
HEAD = struct.Struct("<Bqq")  # what it is, which step it belongs to, how many bytes follow
MARK = b"trueup 1"
BEAT, SUM, LARGEST, BYE = range(4)
GREETING = 5.0  # seconds in which one who connects must say who it is
PAUSE = 0.05  # seconds between two knocks at a door that is not open yet
FAREWELL = 5.0  # seconds in which the others may close first
MOST = 1 << 30  # bytes of one message
SILENCE = "gave no sign of life"


@dataclass(frozen=True)
class Limits:
    """How long processes wait for each other, in seconds.

    Attributes
    ----------
    join : float
        All must have come by then. Long, since one may hold more rows than another and come later; one that dies before
        is told by its own worker.
    beat : float
        Between two signs of life.
    silent : float
        Without one, a process is lost: its machine may be.
    """

    join: float = 120.0
    beat: float = 3.0
    silent: float = 30.0


LIMITS = Limits()


class Communicator(Protocol):
    """Processes that each hold a part of the rows and take every step together.

    All of them must call `all_reduce_sum` and `all_reduce_max` equally often, in the same order; all hear the same
    answer, to the last bit.
    ``threads`` is how many threads this process may use; 0 is as many as there are cores. ``addresses`` are a host and a
    free port of each worker, by rank, for the learner's own connections.
    """

    rank: int
    size: int
    threads: int
    addresses: Sequence[tuple[str, int]]

    def all_reduce_sum(self, own: Any) -> FloatArray:
        """Add the vectors of all."""

    def all_reduce_max(self, own: Any) -> FloatArray:
        """Take the largest of all, place by place."""


class SingleProcess:
    """A team of one: all rows are here."""

    rank = 0
    size = 1
    threads = 0
    addresses: Sequence[tuple[str, int]] = ()

    def all_reduce_sum(self, own: Any) -> FloatArray:
        """Give back what was told."""
        return np.asarray(own, np.float64)

    def all_reduce_max(self, own: Any) -> FloatArray:
        """Give back what was told."""
        return np.asarray(own, np.float64)


SINGLE_PROCESS = SingleProcess()


class SocketCommunicator:
    """Hold hands with every other process: a `Communicator`.

    Parameters
    ----------
    rank, size : int
    hub : (str, int)
        Where the first process listens.
    word : str
        Only those who know it are let in. Others are turned away.
    lost : callable
        Told in words that another is gone, in a thread of its own. Where `all_reduce_sum` may not be what
        waits (LightGBM cannot be interrupted) it must end the process. Then `all_reduce_sum` raises `LostWorkerError`.
    addresses : sequence of (str, int)
        A host and a free port of each worker, for the learner's own connections.
    threads : int
        How many threads this process may use.
    limits : Limits
    """

    def __init__(
        self,
        rank: int,
        size: int,
        hub: tuple[str, int],
        word: str,
        lost: Callable[[str], None],
        *,
        addresses: Sequence[tuple[str, int]] = (),
        threads: int = 1,
        limits: Limits = LIMITS,
    ) -> None:
        self.rank, self.size, self.threads = rank, size, threads
        self.addresses = addresses
        self._lost, self._limits = lost, limits
        self._step = 0
        self._over = threading.Event()
        self._peers: dict[int, _Peer] = {}
        if size == 1:
            return
        token = word.encode()
        met = _welcome(hub, size, token, limits) if rank == 0 else {0: _knock(hub, rank, size, token, limits)}
        for place, one in met.items():
            one.settimeout(limits.silent)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # sums are small, and everyone waits for them
            self._peers[place] = _Peer(place, one)
        for peer in self._peers.values():
            threading.Thread(target=self._listen, args=(peer,), daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()

    def all_reduce_sum(self, own: Any) -> FloatArray:
        """Add the arrays of all, in the order of their ranks, so that everyone has the same sum to the last bit."""
        return self._together(SUM, own)

    def all_reduce_max(self, own: Any) -> FloatArray:
        """Take the largest of all, place by place; NaN where one is NaN."""
        return self._together(LARGEST, own)

    def part(self) -> None:
        """Wait for all, then let go."""
        if not self._over.is_set():
            self._together(BYE, np.zeros(1))
        self._over.set()
        if self.rank == 0:  # a connection that is closed with words unread would take the farewell back
            until = time.monotonic() + FAREWELL
            for peer in self._peers.values():
                peer.closed.wait(max(until - time.monotonic(), 0.0))
        for peer in self._peers.values():
            peer.close()

    def leave(self) -> None:
        """Let go at once: the others will learn of it."""
        self._over.set()
        for peer in self._peers.values():
            peer.close()

    def _together(self, kind: int, own: Any) -> FloatArray:
        mine = np.ascontiguousarray(own, np.float64)
        self._step += 1
        if self.rank:
            self._send(self._peers[0], kind, mine.tobytes())
            return self._hear(self._peers[0], kind, mine).reshape(np.shape(own))
        found = mine.copy()
        for place in sorted(self._peers):
            other = self._hear(self._peers[place], kind, mine)
            found = np.maximum(found, other) if kind == LARGEST else found + other
        body = found.tobytes()
        for peer in self._peers.values():
            self._send(peer, kind, body)
        return found.reshape(np.shape(own))

    def _hear(self, peer: _Peer, kind: int, like: FloatArray) -> FloatArray:
        """Take what a process said in this step."""
        said = peer.said.get()
        if isinstance(said, str):
            raise LostWorkerError(said, missed=True)
        what, step, body = said
        if (what, step, len(body)) != (kind, self._step, like.nbytes):
            raise AssertionError(
                f"processes are out of step: {(what, step, len(body))} is not {(kind, self._step, like.nbytes)}"
            )
        return np.frombuffer(body, np.float64).reshape(like.shape).copy()

    def _send(self, peer: _Peer, kind: int, body: bytes) -> None:
        try:
            with peer.lock:
                peer.line.sendall(HEAD.pack(kind, self._step, len(body)) + body)
        except OSError as error:
            self._gone(peer, error)

    def _beat(self) -> None:
        while not self._over.wait(self._limits.beat):
            for peer in self._peers.values():
                if not peer.lock.acquire(blocking=False):
                    continue  # it is being sent something: that is a sign of life, too
                try:
                    peer.line.sendall(HEAD.pack(BEAT, 0, 0))
                except OSError as error:
                    self._gone(peer, error)
                finally:
                    peer.lock.release()

    def _listen(self, peer: _Peer) -> None:
        try:
            while True:
                kind, step, size = HEAD.unpack(_read(peer.line, HEAD.size))
                if kind == BEAT:
                    continue
                if kind not in (SUM, LARGEST, BYE) or not 0 <= size <= MOST:
                    raise ConnectionError("it said something that no process of ours says")
                body = _read(peer.line, size)
                peer.parted = kind == BYE
                peer.said.put((kind, step, body))
                if self.rank and peer.parted:
                    return
        except OSError as error:
            self._gone(peer, error)
        finally:
            peer.closed.set()

    def _gone(self, peer: _Peer, error: OSError) -> None:
        """Tell that a process was lost, unless it has said good-bye."""
        if peer.parted or self._over.is_set():
            return
        silent = isinstance(error, TimeoutError)
        words = f"{SILENCE} for {self._limits.silent:g} s" if silent else f"is gone ({error})"
        said = f"process {peer.rank + 1} of {self.size} {words}"
        self._lost(said)
        for one in self._peers.values():
            one.said.put(said)


class _Peer:
    """One at the other end of a connection."""

    def __init__(self, rank: int, line: socket.socket) -> None:
        self.rank, self.line = rank, line
        self.lock = threading.Lock()
        self.said: queue.SimpleQueue[tuple[int, int, bytes] | str] = queue.SimpleQueue()
        self.parted = False
        self.closed = threading.Event()

    def close(self) -> None:
        """Close the connection, also under the feet of the thread that listens."""
        with contextlib.suppress(OSError):  # where it is closed at the other end
            self.line.shutdown(socket.SHUT_RDWR)
        self.line.close()


def _read(line: socket.socket, size: int) -> bytes:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        more = line.recv_into(view[at:])
        if not more:
            raise ConnectionError("it closed the connection")
        at += more
    return bytes(found)


def _welcome(hub: tuple[str, int], size: int, token: bytes, limits: Limits) -> dict[int, socket.socket]:
    """Let all others in."""
    hall = _Hall(size, token)
    until = time.monotonic() + limits.join
    with socket.create_server(hub) as door:
        door.settimeout(PAUSE)
        while not hall.full():
            if time.monotonic() > until:
                raise LostWorkerError(f"{hall.shut()} did not come within {limits.join:g} s", missed=True)
            try:
                line, _ = door.accept()
            except TimeoutError:
                continue
            threading.Thread(target=hall.greet, args=(line,), daemon=True).start()
    return hall.peers


class _Hall:
    """Those who have come; one who says nothing, or not the word, keeps no one else waiting."""

    def __init__(self, size: int, token: bytes) -> None:
        self.peers: dict[int, socket.socket] = {}
        self._size, self._token, self._open = size, token, True
        self._lock = threading.Lock()

    def full(self) -> bool:
        """Say whether all are there; then no one is let in any more."""
        with self._lock:
            self._open = len(self.peers) < self._size - 1
            return not self._open

    def shut(self) -> str:
        """Send everyone away; say who did not come."""
        with self._lock:
            self._open = False
            for line in self.peers.values():
                line.close()
            missing = [str(rank + 1) for rank in range(1, self._size) if rank not in self.peers]
        return f"process {', '.join(missing)} of {self._size}"

    def greet(self, line: socket.socket) -> None:
        """Hear who it is."""
        try:
            line.settimeout(GREETING)
            mark, said, rank, count = HELLO.unpack(_read(line, HELLO.size))
            known = mark == MARK and hmac.compare_digest(said, self._token) and count == self._size and 0 < rank < count
            with self._lock:
                if not known or not self._open:
                    line.close()
                    return
                line.sendall(WELCOME.pack(MARK, self._token))
                if rank in self.peers:
                    self.peers[rank].close()  # it did not hear us, and has knocked again
                self.peers[rank] = line
        except OSError:
            line.close()


def _knock(hub: tuple[str, int], rank: int, size: int, token: bytes, limits: Limits) -> socket.socket:
    """Ask to be let in until the door is open."""
    until = time.monotonic() + limits.join
    while True:
        line = None
        try:
            line = socket.create_connection(hub, timeout=GREETING)
            line.sendall(HELLO.pack(MARK, token, rank, size))
            if _read(line, WELCOME.size) == WELCOME.pack(MARK, token):
                return line
            raise ConnectionError("another one listens there")
        except OSError as error:
            if line is not None:
                line.close()
            if time.monotonic() > until:
                raise LostWorkerError(
                    f"the first process, at {hub[0]}:{hub[1]}, could not be reached within {limits.join:g} s ({error})",
                    missed=True,
                ) from error
            time.sleep(PAUSE)
