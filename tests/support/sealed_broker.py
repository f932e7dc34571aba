"""`strandline` with connections over `SealedTransport`: run as `python -m`, arguments as usual."""

from __future__ import annotations

import sys

from strandline.broker.cli import main
from strandline.broker.network import server
from tests.support.sealed_transport import SealedTransport

if __name__ == "__main__":
    server.SystemNetwork.transport = staticmethod(SealedTransport)  # type: ignore[assignment]
    sys.exit(main())
