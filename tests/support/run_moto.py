"""Runs moto's server, one request at a time.

It has a thread for each connection, and looks at the condition of a PUT before it writes, without
a lock against another thread in between: of two clients that swap an object both win now and then.
S3 does not do that. And Glue refuses the update of a table that has another version than the given
one, which moto does not look at.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from moto.core.responses import ActionResult
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_lock = threading.Lock()
_answer = DomainDispatcherApplication.__call__
_update_table = GlueResponse.update_table


def _answer_alone(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with _lock:
        return list(_answer(self, environ, start_response))


class ConcurrentModificationException(GlueClientError):
    """Glue's refusal of a version that is not the newest."""

    def __init__(self) -> None:
        super().__init__(
            "ConcurrentModificationException", "Update table failed due to concurrent modifications"
        )


def _update_newest(self: GlueResponse) -> ActionResult:
    given = self.parameters.get("VersionId")
    table = self.glue_backend.get_table(
        self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"]
    )
    if given is not None and given != str(table.as_dict()["VersionId"]):
        raise ConcurrentModificationException
    return _update_table(self)


if __name__ == "__main__":
    GlueResponse.update_table = _update_newest  # type: ignore[method-assign]
    DomainDispatcherApplication.__call__ = _answer_alone  # type: ignore[method-assign]
    main()
