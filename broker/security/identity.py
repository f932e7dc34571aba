"""Who sends a request: the principal, as Kafka's KafkaPrincipal, and where it comes from.

The controller decides with the identity that the first broker found, so all of it fits into an
Envelope: type and name in Kafka's DefaultPrincipalData (`formats/principal_data.py`), the address
as 4 or 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

# Kafka's name of an unauthenticated client.
ANONYMOUS = "ANONYMOUS"
# The one type of principal that Kafka's own mechanisms give.
USER_TYPE = "User"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """The principal of a connection, its address, and the listener that accepted it."""

    user: str = ANONYMOUS
    principal_type: str = USER_TYPE
    # As Java prints it (`java_address`), for rules name hosts so; empty where it does not matter.
    address: str = ""
    listener: str = ""

    @property
    def principal(self) -> str:
        """Kafka's text of the principal: `User:alice`."""
        return f"{self.principal_type}:{self.user}"

    def address_bytes(self) -> bytes:
        """Returns the address as an Envelope has it: 4 bytes or 16. Raises ValueError if none."""
        return ip_address(self.address).packed


ANONYMOUS_CLIENT = ClientIdentity()


def java_address(host: str) -> str:
    """Returns an address as Java's InetAddress.getHostAddress: IPv6 with all eight groups.

    An IPv4-mapped address is that of IPv4. Raises ValueError for text that is no address.
    """
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    packed = address.packed
    return ":".join(f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, 16, 2))
