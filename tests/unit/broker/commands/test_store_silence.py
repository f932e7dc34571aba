"""A command that waits for a store that does not answer says so, instead of nothing."""

from __future__ import annotations

import socket

import pytest

from strandline.broker.commands.store_silence import watched
from strandline.storage.errors import TierUnavailable
from strandline.storage.remote.object_store.interface import Deadlines
from strandline.storage.remote.open_store import open_store


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named_while_the_command_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        deadlines = Deadlines(read_s=4.0, attempts_max=1)
        store = watched(open_store("s3://b/a", endpoint_url=endpoint_url, deadlines=deadlines))
        with pytest.raises(TierUnavailable):
            store.get("cluster.json")
    assert capsys.readouterr().err == "s3://b/a has not answered for 2 s, still waiting\n"
