"""Why a group cannot be served now."""

from __future__ import annotations

from strandline.broker.protocol.errors import ErrorCode
from strandline.storage.errors import StrandlineError


class CoordinatorFault(StrandlineError):
    """The group cannot be served now; the client is told `error_code`."""

    def __init__(self, error_code: ErrorCode) -> None:
        super().__init__(error_code.name)
        self.error_code = error_code
