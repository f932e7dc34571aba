"""Frames that no request can be read from, and the tasks of requests that wait."""

from __future__ import annotations

import asyncio

from strandline.broker.handlers.dispatch.api_versions import unsupported_api_versions
from strandline.broker.network.responses import CloseConnectionError, Parts
from strandline.broker.protocol.codec.codec import encode
from strandline.broker.protocol.header import frame_response
from strandline.broker.protocol.schema.api import ApiKey
from strandline.broker.protocol.schema.errors import MalformedRequest, UnsupportedVersion
from strandline.broker.protocol.schema.schema import Response
from strandline.broker.telemetry.requests import RequestTraffic


def answer_unreadable(
    error: MalformedRequest | UnsupportedVersion, traffic: RequestTraffic
) -> Parts:
    """Answers ApiVersions of a version that is not known, which every client can read (KIP-511).

    Raises CloseConnectionError for everything else, and counts it.
    """
    if isinstance(error, UnsupportedVersion):
        if error.api_key == ApiKey.API_VERSIONS:
            response = encode(unsupported_api_versions(), 0)
            return frame_response(ApiKey.API_VERSIONS, 0, error.correlation_id, response)
        reason = str(error)
    else:
        reason = f"malformed request: {error}"
    traffic.refused_total += 1
    raise CloseConnectionError(reason) from error


class RunningRequests:
    """The tasks of requests that wait for something."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Response]] = set()

    def add(self, task: asyncio.Task[Response]) -> None:
        """Owns the task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Waits until it is cancelled, and ends the tasks."""
        try:
            await asyncio.Event().wait()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
