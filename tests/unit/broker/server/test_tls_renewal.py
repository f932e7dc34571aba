"""Certificates renew themselves while a listener serves, and what is wrong changes nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.broker.config.broker_config import BrokerConfig
from strandline.broker.config.loading import altered, load_config
from strandline.broker.server.tls import TlsListeners
from strandline.broker.tls import stores
from strandline.storage.clock import Clock, SystemClock
from tests.support.certificates import Authority, Issued
from tests.support.manual_clock import ManualClock

KEY = "listener.name.ssl.ssl.keystore.location"


class Served:
    """A listener whose files are in folders behind one link, as Kubernetes mounts a secret."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.authority = Authority()
        self._version = 0
        self.swap(self.authority.issue("broker"))
        data = folder / "data"
        self.config = load_config(
            None,
            (
                "listeners=SSL://127.0.0.1:0",
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={data / 'tls.pem'}",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={data / 'ca.pem'}",
                f"strandline.ssl.crl.location={data / 'ca.crl'}",
                "ssl.client.auth=required",
                *overrides,
            ),
        )
        self.listeners = TlsListeners(self.config)

    def swap(
        self,
        own: Issued,
        *,
        content: str | None = None,
        revoked: tuple[Issued, ...] = (),
        lists: str | None = None,
        trusted: str | None = None,
    ) -> None:
        """Replaces all files at once."""
        self._version += 1
        version = self.folder / f"version-{self._version}"
        version.mkdir()
        (version / "tls.pem").write_text(content or own.key_pem() + own.chain_pem)
        (version / "ca.pem").write_text(trusted or self.authority.pem)
        (version / "ca.crl").write_text(lists or self.authority.revocations(*revoked))
        link = self.folder / "next"
        link.symlink_to(version.name)
        link.replace(self.folder / "data")

    def look(self, config: BrokerConfig | None = None, clock: Clock | None = None) -> bool:
        """Whether the listener serves with another context after it."""
        before = self.context
        asyncio.run(self.listeners.renew(config or self.config, clock or SystemClock()))
        return self.context is not before

    @property
    def context(self) -> ssl.SSLContext:
        return self.listeners.by_name["SSL"].loaded.context


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_files_that_stay_are_not_loaded_again(served: Served) -> None:
    assert not served.look()


def test_a_certificate_behind_a_link_is_renewed(served: Served) -> None:
    served.swap(served.authority.issue("broker"))
    assert served.look()
    assert not served.look()


def _of_another_key(served: Served) -> str:
    return served.authority.issue("broker").key_pem() + served.authority.issue("broker").chain_pem


def _written(issued: Issued) -> str:
    return issued.key_pem() + issued.chain_pem


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (_of_another_key, "the key is not that of the first certificate"),
        (lambda served: "half of a", "expected one private key"),
        (
            lambda served: _written(served.authority.issue("broker", valid_days=(-9, -1))),
            "has expired",
        ),
        (
            lambda served: _written(served.authority.issue("broker", valid_days=(1, 9))),
            "is not valid yet",
        ),
        (
            lambda served: _written(served.authority.issue("another")),
            "ssl.allow.dn.changes=true would allow it",
        ),
        (
            lambda served: _written(served.authority.issue("broker", hosts=["localhost"])),
            "ssl.allow.san.changes=true would allow it",
        ),
    ],
)
def test_what_is_wrong_is_told_once_and_the_present_certificate_stays(
    served: Served,
    content: Callable[[Served], str],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.swap(served.authority.issue("broker"), content=content(served))
    assert not served.look()
    assert not served.look()
    (said,) = [one for one in caplog.records if "TLS not renewed" in one.message]
    assert reason in said.fields["reason"]  # type: ignore[attr-defined]
    served.swap(served.authority.issue("broker"))
    assert served.look()


def test_a_certificate_that_begins_later_is_taken_up_when_it_does(served: Served) -> None:
    clock = ManualClock(SystemClock().now_ms())
    served.swap(served.authority.issue("broker", valid_days=(1 / 24, 9)))
    assert not served.look(clock=clock)
    clock.advance_ms(2 * 3_600_000)
    assert served.look(clock=clock)
    assert not served.look(clock=clock)


def test_a_file_that_may_be_read_again_is_taken_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of it changes by `chmod`."""

    def refuse(_path: object, _bytes_max: int) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    served.swap(served.authority.issue("broker"))
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(stores, "read_named", refuse)
        assert not served.look()
    assert served.look()


def test_a_pipe_in_place_of_a_file_holds_up_no_other_listener(served: Served) -> None:
    os.mkfifo(served.folder / "pipe")
    assert not served.look(altered(served.config, {KEY: str(served.folder / "pipe")}))


def test_changes_of_names_can_be_allowed(tmp_path: Path) -> None:
    served = Served(tmp_path, "ssl.allow.dn.changes=true", "ssl.allow.san.changes=true")
    served.swap(served.authority.issue("another", hosts=["other.example"]))
    assert served.look()


def test_a_name_that_differs_in_case_alone_and_further_alternative_names_are_no_change(
    served: Served,
) -> None:
    served.swap(served.authority.issue("BROKER", hosts=["localhost", "127.0.0.1", "other.example"]))
    assert served.look()


def test_altered_settings_are_taken_up(served: Served) -> None:
    renewed = served.authority.issue("broker").write(served.folder / "altered.pem")
    assert served.look(altered(served.config, {KEY: str(renewed)}))


def test_a_revoked_certificate_is_refused_from_the_next_look_on(served: Served) -> None:
    client = served.authority.issue("client")
    assert outcome(served, client) is None
    served.swap(served.authority.issue("broker"), revoked=(client,))
    assert served.look()
    error = outcome(served, client)
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "revoked" in error.verify_message
    assert outcome(served, served.authority.issue("client")) is None


def test_a_client_of_a_revoked_authority_is_refused_if_its_root_is_trusted(served: Served) -> None:
    between = Authority("Between", served.authority)
    client = between.issue("client")
    lists = served.authority.revocations() + between.revocations()
    served.swap(served.authority.issue("broker"), lists=lists)
    assert served.look()
    assert outcome(served, client) is None
    lists = served.authority.revocations(between) + between.revocations()
    served.swap(served.authority.issue("broker"), lists=lists)
    assert served.look()
    error = outcome(served, client)
    assert isinstance(error, ssl.SSLCertVerificationError)
    assert "revoked" in error.verify_message


def test_a_trusted_authority_without_its_root_needs_its_own_list_alone(served: Served) -> None:
    between = Authority("Between", Authority("Root"))
    client, revoked = between.issue("client"), between.issue("client")
    served.swap(
        served.authority.issue("broker"),
        lists=between.revocations(revoked),
        trusted=between.pem,
    )
    assert served.look()
    assert outcome(served, client) is None
    assert isinstance(outcome(served, revoked), ssl.SSLCertVerificationError)


def outcome(served: Served, client: Issued) -> OSError | None:
    """What the server's end of a handshake says to a client with the certificate."""
    path = client.write(served.folder / "client.pem")
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = served.context.wrap_bio(forth, back, server_side=True)
    context = served.authority.client_context(path)
    theirs = context.wrap_bio(back, forth, server_hostname="localhost")
    ended = 0
    while ended < 2:
        ended = 0
        for end in (theirs, ours):
            try:
                end.do_handshake()
                ended += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return error
    return None
