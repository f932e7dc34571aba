"""Handshakes of TLS: what costs a quarter of a millisecond or more runs in threads.

    accepted ──► WAITING ── bytes came ──► WORKING ──► done: a transport, and who the peer is
                    ▲                         │
                    └── OpenSSL wants more ───┴──► failed: an alert, a pause, and the end

The first step computes a secret and signs, and the step with the client's certificate checks it:
milliseconds, for some keys. The last step of TLS 1.3 costs less than the way to a thread and back,
so it is done here. The loop waits for all that are in a handshake by one descriptor: those that are
ready have a turn together in each of its rounds.

A connection begins only when its handshake is done. Until then the server has this in its place,
which takes part in its limits: of connections, of those that log in at a time, and of their time.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from strandline.broker.network.client_hello import HelloRefused, is_complete
from strandline.broker.network.handshake_steps import Steps, next_step
from strandline.broker.network.tls_transport import Scratch, TlsSession, TlsTransport
from strandline.storage.clock import Clock
from strandline.storage.concurrency.resizable_pool import Pool
from strandline.storage.errors import OutOfResources
from strandline.storage.quiet_log import QuietLog

log = logging.getLogger(__name__)

# Of one peer, all together: a chain of certificates has some KiB, of which Java reads 32.
HANDSHAKE_BYTES_MAX = 128 * 1024
_RECEIVE_BYTES = 16 * 1024
# In each round of the loop; others wait no longer for them than for one request.
TURN_HANDSHAKES_MAX = 16
# Kinds of records (RFC 8446, 5.1): one that says nothing, and one that is sealed.
_CHANGE_CIPHER_SPEC, _SEALED = 20, 23
_CHANGE_CIPHER_SPEC_BYTES = 6
_GONE = select.EPOLLHUP | select.EPOLLERR
# A line for each reason in this time: peers retry at once.
LOG_S = 10.0

# What Java's SSLEngine says to a client that speaks no TLS, and OpenSSL does not: a fatal alert,
# internal_error. To such a client it is an answer of 352,518,912 bytes, by which people know it.
PLAINTEXT_ALERT = bytes.fromhex("15030300020250")

# Reasons of failures, as the metric has them.
DISCONNECTED, TIMEOUT, PLAINTEXT, OTHER = "disconnected", "timeout", "plaintext", "other"
_BY_VERIFICATION = {
    3: "no_crl",
    9: "not_yet_valid",
    10: "expired",
    12: "crl_expired",
    23: "revoked",
}
_BY_REASON = {
    "HTTP_REQUEST": PLAINTEXT,
    "HTTPS_PROXY_REQUEST": PLAINTEXT,
    "WRONG_VERSION_NUMBER": PLAINTEXT,
    "UNKNOWN_PROTOCOL": PLAINTEXT,
    "UNSUPPORTED_PROTOCOL": "protocol",
    "VERSION_TOO_LOW": "protocol",
    "NO_PROTOCOLS_AVAILABLE": "protocol",
    "INAPPROPRIATE_FALLBACK": "protocol",
    "NO_SHARED_CIPHER": "cipher",
    "NO_SUITABLE_SIGNATURE_ALGORITHM": "cipher",
    "NO_SUITABLE_KEY_SHARE": "cipher",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
}


def reason_of(error: Exception) -> str:
    """Returns one of the few reasons that the metric has."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_VERIFICATION.get(error.verify_code, "untrusted")
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        # What the peer does not like of us; usually the certificate.
        return _BY_REASON.get(reason, "alert" if "ALERT" in reason else OTHER)
    return DISCONNECTED if isinstance(error, OSError) else OTHER


class Handshakes:
    """The handshakes of a server: what they share, and their counts."""

    def __init__(
        self,
        contexts: Mapping[str, Callable[[], ssl.SSLContext]],
        workers: Pool,
        clock: Clock,
        *,
        failed_delay_s: float,
    ) -> None:
        """`contexts` return that of the moment, by listener. A failed one is closed after a delay,
        which lets its alert arrive.
        """
        self.clock = clock
        self.failed_delay_s = failed_delay_s
        self.scratch = Scratch()
        self.loop = asyncio.get_running_loop()
        self.steps = Steps(workers, self.loop)
        self._contexts = contexts
        # Those that wait for bytes, by descriptor. The loop sees them all as one.
        self._waiting: dict[int, Handshake] = {}
        self._ready = select.epoll()
        self._quiet_log = QuietLog(log, clock, quiet_s=LOG_S)
        # By listener, protocol and cipher suite; by listener and reason.
        self.done: Counter[tuple[str, str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()

    def are_needed(self, listener: str) -> bool:
        return listener in self._contexts

    def context(self, listener: str) -> ssl.SSLContext:
        """Returns the context of the moment."""
        return self._contexts[listener]()

    def begin(
        self,
        connected: socket.socket,
        *,
        peer: str,
        listener: str,
        on_done: Callable[[Handshake, TlsTransport, bytes | None], None],
        on_closed: Callable[[Handshake], None],
    ) -> Handshake:
        """Owns the socket until `on_done`, which gets the peer's certificate in DER, if any."""
        return Handshake(
            self,
            connected,
            self._contexts[listener],
            peer=peer,
            listener=listener,
            on_done=on_done,
            on_closed=on_closed,
        )

    def wait_for(self, handshake: Handshake) -> None:
        """Calls its `on_ready` in a turn, once its socket has something."""
        if not self._waiting:
            self.loop.add_reader(self._ready.fileno(), self._take_turn)
        self._waiting[handshake.descriptor] = handshake
        self._ready.register(handshake.descriptor, select.EPOLLIN)

    def wait_no_more(self, handshake: Handshake) -> None:
        """Before its socket is closed; does nothing for one that does not wait."""
        if self._waiting.pop(handshake.descriptor, None) is not None:
            self._ready.unregister(handshake.descriptor)
            if not self._waiting:
                self.loop.remove_reader(self._ready.fileno())

    def _take_turn(self) -> None:
        """Those that get no turn now stay ready, behind the others."""
        for descriptor, events in self._ready.poll(0, TURN_HANDSHAKES_MAX):
            waiting = self._waiting.get(descriptor)
            if waiting is not None:
                waiting.on_ready(is_gone=bool(events & _GONE))

    def close(self) -> None:
        """Ends what runs in threads."""
        self.steps.close()
        self._ready.close()

    def count(self, listener: str, tls: ssl.SSLObject) -> None:
        suite = tls.cipher()
        self.done[listener, tls.version() or "", suite[0] if suite else ""] += 1

    def fail_by(self, listener: str, peer: str, error: OSError) -> None:
        """Notes one that failed with an error, of OpenSSL or of the socket."""
        reason = TIMEOUT if isinstance(error, TimeoutError) else reason_of(error)
        message = getattr(error, "verify_message", "") or getattr(error, "reason", "")
        self.fail(listener, peer, reason, message or str(error))

    def fail(self, listener: str, peer: str, reason: str, message: str) -> None:
        self.failed[listener, reason] += 1
        self._quiet_log.say(
            logging.WARNING,
            "TLS handshake failed",
            reason,
            {"peer": peer, "listener": listener, "reason": reason, "error": message},
        )


class Handshake:
    """One connection whose handshake is not done."""

    __slots__ = (
        "_all",
        "_context",
        "_head",
        "_is_over",
        "_on_closed",
        "_on_done",
        "_received_bytes",
        "_session",
        "_socket",
        "closed",
        "descriptor",
        "listener",
        "opened_s",
        "peer",
        "peer_address",
    )

    def __init__(
        self,
        handshakes: Handshakes,
        connected: socket.socket,
        context: Callable[[], ssl.SSLContext],
        *,
        peer: str,
        listener: str,
        on_done: Callable[[Handshake, TlsTransport, bytes | None], None],
        on_closed: Callable[[Handshake], None],
    ) -> None:
        self._all = handshakes
        self._socket = connected
        self.descriptor = connected.fileno()
        self._context = context
        # What came before there is a session.
        self._head = bytearray()
        self._session: TlsSession | None = None
        self._on_done = on_done
        self._on_closed = on_closed
        self._received_bytes = 0
        self.peer = peer
        self.peer_address = peer.rpartition(":")[0]
        self.listener = listener
        self.closed = False
        # Whether it is done, or has failed.
        self._is_over = False
        self.opened_s = handshakes.clock.monotonic_s()
        handshakes.wait_for(self)

    def __repr__(self) -> str:
        return f"<Handshake {self.peer} received={self._received_bytes}>"

    def on_ready(self, *, is_gone: bool) -> None:
        """Takes what has come, and the next step with it; none for a client that is gone."""
        if is_gone:
            self._fail(DISCONNECTED, "the client left")
            return
        received = self._all.scratch.received[:_RECEIVE_BYTES]
        try:
            size = self._socket.recv_into(received)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(DISCONNECTED, error.strerror or "")
            return
        if not size:
            # Whoever only looks whether the port is open is no failure.
            if self._received_bytes:
                self._fail(DISCONNECTED, "the client left")
            else:
                self.close("closed by the client")
            return
        self._received_bytes += size
        if self._received_bytes > HANDSHAKE_BYTES_MAX:
            self._fail(OTHER, f"more than {HANDSHAKE_BYTES_MAX} bytes")
            return
        if self._session is None:
            self._head += received[:size]
            self._begin()
        else:
            self._session.incoming.write(received[:size])
            self._go_on(self._session, is_last=_is_last(received[:size]))

    def _begin(self) -> None:
        """Makes the session once there is a first message for it."""
        try:
            if not is_complete(self._head):
                return
        except HelloRefused as error:
            self._fail(OTHER, str(error))
            return
        self._session = session = TlsSession.of_server(self._context())
        session.incoming.write(self._head)
        self._head.clear()
        self._go_on(session, is_last=False)

    def _go_on(self, session: TlsSession, *, is_last: bool) -> None:
        if is_last and session.tls.context.verify_mode == ssl.CERT_NONE:
            self._on_step(session, next_step(session.tls))
            return
        self._all.wait_no_more(self)
        try:
            self._all.steps.take(session.tls, self._on_taken)
        except (OutOfResources, RuntimeError) as error:
            self._fail(OTHER, str(error))

    def _on_taken(self, found: Exception | bool) -> None:
        if not self.closed:
            assert self._session is not None
            self._on_step(self._session, found)
            if not self._is_over:
                self._all.wait_for(self)

    def _on_step(self, session: TlsSession, found: Exception | bool) -> None:
        is_sent = self._flush(session)
        if isinstance(found, Exception):
            message = getattr(found, "verify_message", "") or getattr(found, "reason", "")
            self._fail(reason_of(found), message or str(found))
        elif not is_sent:
            self._fail(OTHER, "the client does not read")
        elif found:
            self._finish(session)

    def _flush(self, session: TlsSession) -> bool:
        """Sends what OpenSSL has to say: a few KiB, for which each new socket has room."""
        unsent = session.outgoing.read()
        try:
            return not unsent or self._socket.send(unsent) == len(unsent)
        except OSError:
            return False

    def _finish(self, session: TlsSession) -> None:
        self._all.wait_no_more(self)
        self.closed = self._is_over = True
        tls = session.tls
        self._all.count(self.listener, tls)
        transport = TlsTransport(self._socket, self._all.loop, session, self._all.scratch)
        self._on_done(self, transport, tls.getpeercert(binary_form=True))

    def _fail(self, reason: str, message: str) -> None:
        self._all.fail(self.listener, self.peer, reason, message)
        self._is_over = True
        self._all.wait_no_more(self)
        # An immediate end could overtake the alert, and the client would see no reason.
        with suppress(OSError):
            if reason == PLAINTEXT:
                self._socket.send(PLAINTEXT_ALERT)
            self._socket.shutdown(socket.SHUT_WR)
        self._all.loop.call_later(self._all.failed_delay_s, self.close, reason)

    def close(self, reason: str) -> None:
        """Closes the socket; calling it again does nothing."""
        if self.closed:
            return
        self.closed = True
        self._all.wait_no_more(self)
        self._socket.close()
        log.debug("handshake ended", extra={"fields": {"peer": self.peer, "reason": reason}})
        self._on_closed(self)


def _is_last(received: memoryview) -> bool:
    """Whether it is what ends a handshake of TLS 1.3: before that there are keys to compute."""
    kind = received[0]
    if kind == _CHANGE_CIPHER_SPEC and len(received) > _CHANGE_CIPHER_SPEC_BYTES:
        kind = received[_CHANGE_CIPHER_SPEC_BYTES]
    return kind == _SEALED
