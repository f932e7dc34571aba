"""The authorizer: decides by the rules of the newest image (Kafka's StandardAuthorizer).

    super user                                   everything
    some rule denies it                          no
    some rule allows it                          yes
    no rule at all matches the resource          allow.everyone.if.no.acl.found

What a principal may do to a resource is remembered until the rules change, as the bits of all
operations: a request asks for the same names again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from strandline.broker.authorization.config import AuthorizerConfig
from strandline.broker.authorization.index import EVERY_OPERATION, AclIndex
from strandline.broker.cluster.metadata.image import MetadataDelta, MetadataImage
from strandline.broker.security.acl import CLUSTER_NAME, Acl, ResourceKind

# In 20 MB of usual names, and 40 of any. All is forgotten when there are more.
DECISIONS_MAX: Final = 100_000
# A name counts once more for each so many characters, of up to four bytes.
COUNTED_AGAIN_CHARACTERS: Final = 64
# Names of groups and transactional ids may be as long as 32,767 bytes; such are not remembered.
REMEMBERED_NAME_MAX: Final = 256


class Denial(NamedTuple):
    """What a client asked for and may not do."""

    principal: str
    host: str
    operation: int
    kind: int
    name: str


class Authorizer:
    """The rules in force. Used on the event loop only."""

    def __init__(
        self, config: AuthorizerConfig, *, on_denied: Callable[[Denial], None] = lambda _: None
    ) -> None:
        """`on_denied` is told what a client asked for in vain, each time."""
        self._config = config
        self.on_denied = on_denied
        # Denials that were told, by kind of resource and operation.
        self.denied_counts: Counter[tuple[int, int]] = Counter()
        self.index = AclIndex()
        self._accesses: dict[tuple[str, str], Access] = {}
        # Everything that was decided before it was another number is forgotten.
        self.round = 0
        self._decision_count = 0

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        """Adopts changed rules. From now on each decision is by them."""
        if not delta.acls:
            return
        for acl in delta.acls.gone():
            self.index.remove(acl)
        for acl in delta.acls.changed():
            self.index.add(acl)
        self._forget()

    def access(self, principal: str, host: str) -> Access:
        """Returns what decides for a principal (`User:alice`) that comes from a host."""
        access = self._accesses.get((principal, host))
        if access is None:
            access = Access(self, principal, host, is_super=principal in self._config.super_users)
            self.count_decision(principal)
            self._accesses[principal, host] = access
        return access

    def decide(self, principal: str, host: str, kind: int, name: str) -> int:
        """Returns the operations that are allowed, as bits, without what is remembered."""
        found = self.index.find(principal, host, kind, name)
        if not found.has_rules and self._config.allows_without_acl:
            return EVERY_OPERATION
        return found.operations

    def deny(self, denial: Denial) -> None:
        """Counts and tells what a client may not do."""
        self.denied_counts[denial.kind, denial.operation] += 1
        self.on_denied(denial)

    def rule_of(self, denial: Denial) -> Acl | None:
        """Returns the rule that denies it; None if there is none, and none that allows it."""
        principal, host, operation, kind, name = denial
        return self.index.deciding_rule(principal, host, kind, name, operation)

    def count_decision(self, name: str) -> None:
        """Notes that one more is remembered, of something with that name."""
        self._decision_count += 1 + len(name) // COUNTED_AGAIN_CHARACTERS
        if self._decision_count > DECISIONS_MAX:
            self._forget()

    def _forget(self) -> None:
        self.round += 1
        self._decision_count = 0
        self._accesses.clear()


class Access:
    """What one principal may do from one host. It may be kept: it sees changed rules at once."""

    __slots__ = ("_authorizer", "_known", "_round", "host", "is_super", "principal")

    def __init__(
        self, authorizer: Authorizer, principal: str, host: str, *, is_super: bool
    ) -> None:
        self._authorizer = authorizer
        self.principal = principal
        self.host = host
        self.is_super = is_super
        self._round = authorizer.round
        self._known: dict[tuple[int, str], int] = {}

    def operations(self, kind: int, name: str) -> int:
        """Returns the operations that are allowed on a resource: bit n is operation n."""
        if self.is_super:
            return EVERY_OPERATION
        if self._round != self._authorizer.round:
            self._known.clear()
            self._round = self._authorizer.round
        known = self._known.get((kind, name))
        if known is not None:
            return known
        decided = self._authorizer.decide(self.principal, self.host, kind, name)
        if len(name) <= REMEMBERED_NAME_MAX:
            self._authorizer.count_decision(name)
            self._known[kind, name] = decided
        return decided

    def shows(self, operation: int, kind: int, name: str) -> bool:
        """Returns whether the operation is allowed; nobody is told if it is not."""
        return bool(self.operations(kind, name) >> operation & 1)

    def may(self, operation: int, kind: int, name: str) -> bool:
        """Returns whether the operation is allowed; a denial is told."""
        # What every record batch and fetch asks comes first, without a further call.
        if self._round == self._authorizer.round:
            known = self._known.get((kind, name))
            if known is not None and known >> operation & 1:
                return True
        if self.operations(kind, name) >> operation & 1:
            return True
        self._authorizer.deny(Denial(self.principal, self.host, operation, kind, name))
        return False

    def may_cluster(self, operation: int) -> bool:
        """As `may`, of the cluster."""
        return self.may(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    def shows_cluster(self, operation: int) -> bool:
        """As `shows`, of the cluster."""
        return self.shows(operation, ResourceKind.CLUSTER, CLUSTER_NAME)

    def may_somewhere(self, operation: int, kind: int) -> bool:
        """Returns whether the operation is allowed on some resource of the kind; denials are not
        told.
        """
        # Kafka asks for a name that it made up first: for super users, and where nothing is denied
        # that no rule matches.
        return self.shows(operation, kind, "hardcode") or self._authorizer.index.may_somewhere(
            self.principal, self.host, kind, operation
        )


# Where there is no authorizer.
EVERY_RIGHT: Final = Access(Authorizer(AuthorizerConfig()), "", "", is_super=True)
