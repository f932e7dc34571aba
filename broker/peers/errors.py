"""Why another node did not answer."""

from __future__ import annotations

from strandline.storage.errors import StrandlineError


class PeerError(StrandlineError):
    """A request to another node got no answer."""


class PeerUnreachable(PeerError):
    """There is no connection, or it broke, or the answer did not come in time: try again.

    Whether the other node carried the request out is unknown.
    """


class PeerRefused(PeerError):
    """The two do not trust each other: a login or a certificate. Somebody has to see to it."""


class PeerTooOld(PeerError):
    """The other node has no version of the request that this release knows."""
