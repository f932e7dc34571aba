"""Why a group cannot be served now."""

from __future__ import annotations

from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.errors import StrandlineError


class CoordinatorFault(StrandlineError):
    """The group cannot be served now; the client is told `error_code`, and `message` if there is
    one and its protocol has a place for it."""

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(error_code.name if message is None else message)
        self.error_code = error_code
        self.message = message
