"""Clients on this machine are not paced; all others get what the system has chosen."""

from __future__ import annotations

import socket

import pytest

from strandline.broker.network.pacing import UNPACED, SystemChoice, congestion_control

ELSEWHERE = "192.0.2.7"


class ForeignSystem:
    """A socket of a system that has another congestion control than this one."""

    def __init__(self, control: bytes, *, own_host: str = "192.0.2.1", fixed: bool = False) -> None:
        self.control = control
        self._own_host = own_host
        self._fixed = fixed

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        return self.control.ljust(size, b"\0")

    def setsockopt(self, _level: int, _option: int, value: bytes) -> None:
        if self._fixed:
            raise PermissionError
        self.control = value

    def getsockname(self) -> tuple[str, int]:
        return self._own_host, 9092


def settled(listening: ForeignSystem, peer_host: str, **changes: str) -> bytes:
    """What an accepted connection of this client ends with."""
    choice = SystemChoice(listening)  # type: ignore[arg-type]
    accepted = ForeignSystem(changes.get("by_route", "").encode() or listening.control)
    choice.restore(accepted, peer_host)  # type: ignore[arg-type]
    return accepted.control


@pytest.mark.parametrize(
    ("peer_host", "control"),
    [("127.0.0.1", UNPACED), ("::1", UNPACED), ("192.0.2.1", UNPACED), (ELSEWHERE, b"bbr")],
)
def test_only_clients_of_this_machine_lose_the_pacing(peer_host: str, control: bytes) -> None:
    assert settled(ForeignSystem(b"bbr"), peer_host) == control


@pytest.mark.parametrize("control", [b"cubic", b"dctcp", b"reno"])
@pytest.mark.parametrize("peer_host", ["127.0.0.1", ELSEWHERE])
def test_a_control_that_does_not_pace_is_left_alone(control: bytes, peer_host: str) -> None:
    assert settled(ForeignSystem(control), peer_host) == control


def test_what_a_route_has_chosen_stands() -> None:
    assert settled(ForeignSystem(b"bbr"), ELSEWHERE, by_route="dctcp") == b"dctcp"


def test_a_system_that_allows_no_change_still_serves() -> None:
    assert settled(ForeignSystem(b"bbr", fixed=True), ELSEWHERE) == b"bbr"


def test_an_accepted_connection_has_the_listening_sockets_control_and_gets_the_systems_back() -> (
    None
):
    with socket.socket() as fresh:
        of_the_system = congestion_control(fresh)
    assert of_the_system
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        # Whatever this system has: as if it had been BBR.
        choice = SystemChoice(listening)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
        choice._replaced = of_the_system
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            choice.restore(accepted, "127.0.0.1")
            assert congestion_control(accepted) == UNPACED
            choice.restore(accepted, ELSEWHERE)
            assert congestion_control(accepted) == of_the_system
