"""Runs moto's server, one request at a time.

It has a thread for each connection, and looks at the condition of a PUT before it writes, without
a lock against another thread in between: of two clients that swap an object both win now and then.
S3 does not do that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import main

_lock = threading.Lock()
_answer = DomainDispatcherApplication.__call__


def _answer_alone(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    with _lock:
        return list(_answer(self, environ, start_response))


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = _answer_alone  # type: ignore[method-assign]
    main()
