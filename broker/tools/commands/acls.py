"""`strandline acl add|remove|list`: options named as those of kafka-acls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from ipaddress import ip_address
from itertools import product
from typing import TYPE_CHECKING

from strandline.broker.security.identity import java_address
from strandline.broker.tools.client.confirmation import confirm
from strandline.broker.tools.client.failures import WrongUse
from strandline.broker.tools.client.printing import print_json, remark, say
from strandline.broker.tools.client.rules import Rule
from strandline.broker.tools.client.tables import print_table
from strandline.broker.tools.commands.command_parser import (
    action_parser,
    chosen_connection,
    command_parser,
)
from strandline.broker.tools.commands.options import (
    CommandParser,
    Commands,
    add_actions,
    add_json,
    add_repeated,
    add_yes,
)
from strandline.storage.plurals import counted

if TYPE_CHECKING:
    from strandline.broker.tools.client.acls import ClusterAcls

# The operations that a resource can have (Kafka's AclEntry.supportedOperations).
OPERATIONS = {
    "topic": (
        *("read", "write", "create", "delete", "alter"),
        *("describe", "describe-configs", "alter-configs", "all"),
    ),
    "group": ("read", "delete", "describe", "describe-configs", "alter-configs", "all"),
    "cluster": (
        *("create", "alter", "describe", "cluster-action"),
        *("describe-configs", "alter-configs", "idempotent-write", "all"),
    ),
    "transactional-id": ("describe", "write", "all"),
}
_EVERY_OPERATION = sorted({one for some in OPERATIONS.values() for one in some})
CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"

_EXAMPLES = """
examples:
  strandline acl add --allow-principal User:alice --producer --topic orders
  strandline acl add --allow-principal User:bob --consumer --topic orders --group billing
  strandline acl add --allow-principal User:bob --operation read --topic eu. --prefixed
  strandline acl add --deny-principal User:eve --deny-host 10.0.0.7 --operation all --topic '*'
  strandline acl list
  strandline acl list --topic orders --match     # with the prefixes and * that match it
  strandline acl remove --allow-principal User:bob --topic orders
"""


def add_acl(commands: Commands) -> None:
    acl = command_parser(commands, "acl", "say who may do what", _EXAMPLES)
    action = partial(action_parser, add_actions(acl), _EXAMPLES)

    add = action("add", "add rules", _add)
    _add_rule(add)

    remove = action("remove", "remove the rules that match", _remove)
    _add_rule(remove)
    add_yes(remove)

    listing = action("list", "show the rules", _list)
    _add_resources(listing)
    listing.add_argument(
        "--match", action="store_true", help="also prefixes and * that match the names"
    )
    add_repeated(listing, "--principal", "TYPE:NAME", "only rules of this one; may be repeated")
    add_json(listing)


def _add_rule(action: CommandParser) -> None:
    _add_resources(action)
    add_repeated(action, "--allow-principal", "TYPE:NAME", "who may; User:* is everyone")
    add_repeated(action, "--deny-principal", "TYPE:NAME", "who may not, whatever else allows it")
    add_repeated(action, "--allow-host", "ADDRESS", "from where they may [*]")
    add_repeated(action, "--deny-host", "ADDRESS", "from where they may not [*]")
    action.add_argument(
        "--operation",
        action="append",
        default=[],
        choices=_EVERY_OPERATION,
        metavar="NAME",
        help=f"what: {', '.join(_EVERY_OPERATION)} [all]; may be repeated",
    )
    action.add_argument(
        "--producer",
        action="store_true",
        help="write, describe and create of the topics, write and describe of transactional ids",
    )
    action.add_argument(
        "--consumer",
        action="store_true",
        help="read and describe of the topics, read of the groups",
    )
    action.add_argument(
        "--idempotent", action="store_true", help="idempotent-write of the cluster too"
    )


def _add_resources(action: CommandParser) -> None:
    add_repeated(action, "--topic", "NAME", "a topic; * is every one; may be repeated")
    add_repeated(action, "--group", "NAME", "a consumer group; may be repeated")
    add_repeated(action, "--transactional-id", "ID", "a transactional id; may be repeated")
    action.add_argument("--cluster", action="store_true", help="the cluster itself")
    action.add_argument("--prefixed", action="store_true", help="all names that begin so")


def _acls(options: argparse.Namespace) -> ClusterAcls:
    from strandline.broker.tools.client.acls import ClusterAcls

    return ClusterAcls(chosen_connection(options))


def _resources(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Returns kind, name and pattern of each resource on the command line."""
    pattern = "prefixed" if options.prefixed else "literal"
    named = [
        (kind, name, pattern)
        for kind, names in (
            ("topic", options.topic),
            ("group", options.group),
            ("transactional-id", options.transactional_id),
        )
        for name in names
    ]
    if options.prefixed and not named:
        raise WrongUse("--prefixed needs the beginning of a name")
    return [*named, ("cluster", CLUSTER_NAME, "literal")] if options.cluster else named


def _roles(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Returns the operations of --producer and --consumer, as pairs of kind and operation."""
    found: list[tuple[str, str]] = []
    if options.producer:
        found += [("topic", one) for one in ("write", "describe", "create")]
        found += [("transactional-id", one) for one in ("write", "describe")]
    if options.consumer:
        found += [("topic", "read"), ("topic", "describe"), ("group", "read")]
    return found


def _rules(options: argparse.Namespace) -> list[Rule]:
    """Returns the rules on the command line. Raises WrongUse."""
    resources, roles = _resources(options), _roles(options)
    if options.idempotent:
        resources = [*resources, ("cluster", CLUSTER_NAME, "literal")]
        roles = [*roles, ("cluster", "idempotent-write")]
    if roles and options.operation:
        raise WrongUse("--producer, --consumer and --idempotent say the operations already")
    if not resources:
        raise WrongUse(
            "no resource", remedy="give --topic, --group, --transactional-id or --cluster"
        )
    if options.consumer and not (options.topic and options.group):
        raise WrongUse("--consumer needs --topic and --group")
    if options.producer and not options.topic:
        raise WrongUse("--producer needs --topic")
    operations = {
        kind: [one for of_kind, one in roles if of_kind == kind]
        if roles
        else (options.operation or ["all"])
        for kind, _, _ in resources
    }
    for kind, wanted in operations.items():
        unknown = [one for one in wanted if one not in OPERATIONS[kind]]
        if unknown:
            raise WrongUse(
                f"a {kind} has no operation {unknown[0]}",
                remedy=f"it has {', '.join(OPERATIONS[kind])}",
            )
    # A client refuses a rule that it gets twice: producers and consumers both describe.
    rules = (
        Rule(
            kind=kind,
            name=name,
            pattern=pattern,
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for kind, name, pattern in resources
        for permission, principal, host in _holders(options)
        for operation in operations[kind]
    )
    return list(dict.fromkeys(rules))


def _holders(options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """Returns permission, principal and host of the rules. Raises WrongUse."""
    found = []
    for permission, principals, hosts in (
        ("allow", options.allow_principal, options.allow_host),
        ("deny", options.deny_principal, options.deny_host),
    ):
        if hosts and not principals:
            raise WrongUse(f"--{permission}-host needs --{permission}-principal")
        found += list(product((permission,), principals, map(_host, hosts or (WILDCARD,))))
    for _, principal, _ in found:
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            raise WrongUse(f"{principal!r} is no principal", remedy="such as User:alice")
    if not found:
        raise WrongUse("nobody", remedy="give --allow-principal or --deny-principal")
    return found


def _host(text: str) -> str:
    """Returns an address as brokers compare it; a rule with another text of it holds for nobody.

    Raises WrongUse for a name: nothing resolves it.
    """
    if text == WILDCARD:
        return text
    try:
        return java_address(str(ip_address(text)))
    except ValueError:
        raise WrongUse(
            f"{text!r} is no address, and rules know no names of hosts",
            remedy="such as 192.0.2.7 or 2001:db8::7, or * for all",
        ) from None


def _add(options: argparse.Namespace) -> int:
    rules = _rules(options)
    _acls(options).create(rules)
    _show(rules)
    return 0


def _remove(options: argparse.Namespace) -> int:
    """Removes the rules on the command line; without principals or operations, of all."""
    acls = _acls(options)
    found = acls.find(_filters(options))
    if not found:
        say("no such rules")
        return 0
    if not options.yes:
        _show(found)
    confirm(f"{counted(len(found), 'rule')} to be removed", yes=options.yes)
    acls.delete(found)
    say(f"removed {counted(len(found), 'rule')}")
    return 0


def _filters(options: argparse.Namespace) -> list[Rule]:
    """Returns filters of what is given; who or what is not given matches everything."""
    if options.allow_principal or options.deny_principal:
        if options.operation or options.producer or options.consumer or options.idempotent:
            return _rules(options)
        holders: list[tuple[str | None, str | None, str | None]] = [
            (permission, principal, host if given else None)
            for permission, principal, host in _holders(options)
            for given in [options.allow_host if permission == "allow" else options.deny_host]
        ]
    else:
        holders = [(None, None, None)]
    resources = _resources(options)
    if not resources:
        raise WrongUse(
            "no resource", remedy="give --topic, --group, --transactional-id or --cluster"
        )
    return [
        Rule(
            kind=kind,
            name=name,
            pattern=pattern,
            permission=permission,
            principal=principal,
            host=host,
            operation=operation,
        )
        for kind, name, pattern in resources
        for permission, principal, host in holders
        for operation in (options.operation or [None])
    ]


def _list(options: argparse.Namespace) -> int:
    principals: Sequence[str | None] = options.principal or [None]
    resources: Sequence[tuple[str | None, str | None, str | None]] = _resources(options) or [
        (None, None, None)
    ]
    wanted = [
        Rule(
            kind=kind,
            name=name,
            pattern="match" if options.match else pattern,
            principal=principal,
        )
        for kind, name, pattern in resources
        for principal in principals
    ]
    found = _acls(options).find(wanted)
    if options.json:
        print_json([asdict(rule) for rule in found])
    elif not found:
        remark("no rules; without authorizer.class.name a broker has none")
    else:
        _show(found)
    return 0


def _show(rules: Sequence[Rule]) -> None:
    print_table(
        "",
        ("resource", "name", "pattern", "principal", "host", "operation", "permission"),
        [
            (
                rule.kind,
                rule.name,
                rule.pattern,
                rule.principal,
                rule.host,
                rule.operation,
                rule.permission,
            )
            for rule in rules
        ],
    )
