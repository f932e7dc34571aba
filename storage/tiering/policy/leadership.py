"""What this broker is to the archive of a partition, as far as is known.

    UNKNOWN ----> CONFIRMED  the cluster's metadata in the bucket continues with this broker's start
       |            |
       +------------+--> LOST    it continues with another broker's: a clone of this one, or the
                                 original of which this one is a backup
    FOLLOWING                    another broker writes the archive: it leads the partition, or this
                                 one is a read-only replica

Each partition's archive has its own, for the time of one lead: the broker that was elected leads
under its leader epoch, and writes it into the manifest before anything else. So a later commit of
an earlier leader fails, and nothing is deleted by what that one knew.

Two brokers with one identity lead under the same epochs, so no manifest can tell them apart; but
only one of their starts is in the bucket. Above their common past the archive's offsets belong to
other records: this broker may free nothing because of them, restart no log behind them, and write
nothing there. Reads continue. A replica has no past of its own: its log is what the archive has.
"""

from __future__ import annotations

from enum import Enum, auto


class Lead(Enum):
    """The part of this broker in an archive; the module's docstring has the transitions."""

    CONFIRMED = auto()
    UNKNOWN = auto()
    LOST = auto()
    FOLLOWING = auto()
