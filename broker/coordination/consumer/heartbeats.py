"""Heartbeats in KIP-848 groups: pure decisions on a roster.

    1 identity               a new member, a known one in its epoch, a returning static one
    2 subscription           a new subscription or changed topics raise the group's epoch
    3 target assignment      if the epoch was raised, the assignor computes the target of that epoch
    4 reconciliation         one step of this member towards its target (`reconciliation.py`)

Every member learns of a new target with its own next heartbeat; members wait only for partitions
that another one has not revoked yet.

Each step adds records to a draft. The rules are those of Kafka's GroupMetadataManager, except that
a fenced member that returns with epoch 0 under its old id rejoins at once; Kafka fences it again
until its session ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from strandline.broker.cluster.metadata.image import MetadataImage
from strandline.broker.coordination.consumer.assignors import ASSIGNORS, AssignedMember
from strandline.broker.coordination.consumer.reconciliation import Goal, reconcile
from strandline.broker.coordination.consumer.roster import (
    Draft,
    Roster,
    metadata_hash,
    partition_counts,
    topic_ids,
)
from strandline.broker.coordination.model.classic_messages import CoordinatorFault
from strandline.broker.coordination.model.consumer_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    NO_TIMEOUT,
    NOTHING_HELD,
    ConsumerHeartbeat,
    ConsumerRules,
    CurrentAssignment,
    CurrentRecord,
    EpochRecord,
    HeartbeatAnswer,
    MemberRecord,
    MemberSubscription,
    Partitions,
    RegexRecord,
    ResolvedRegex,
    TargetEpochRecord,
    TargetRecord,
    TopicMetadataRecord,
    with_assignment_epoch,
    without_epochs,
)
from strandline.broker.coordination.model.topic_regex import check_regex
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.storage.model import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """The context of a decision, beside the group and the request.

    `is_metadata_new`: the topics may have changed since the group was last checked.
    """

    image: MetadataImage
    rules: ConsumerRules
    is_metadata_new: bool


def check_heartbeat(request: ConsumerHeartbeat, rules: ConsumerRules) -> None:
    """Raises CoordinatorFault for a request that is invalid in any group."""
    epoch = request.member_epoch
    if not request.group_id:
        _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        _invalid("RackId can't be empty.")
    if epoch < LEAVE_FOR_A_WHILE_EPOCH:
        _invalid("MemberEpoch is invalid.")
    if epoch != JOIN_EPOCH and not request.member_id:
        _invalid("MemberId can't be empty.")
    if epoch == LEAVE_FOR_A_WHILE_EPOCH and request.instance_id is None:
        _invalid("InstanceId can't be null.")
    if epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms == NO_TIMEOUT:
            _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            _invalid("TopicPartitions must be empty when (re-)joining.")
        # An empty list or expression is fine: a member without a subscription yet.
        if request.topic_names is None and request.topic_regex is None:
            _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining."
            )
    if request.server_assignor is not None and request.server_assignor not in rules.assignors:
        raise CoordinatorFault(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors:"
            f" {', '.join(rules.assignors)}.",
        )


def _invalid(message: str) -> None:
    raise CoordinatorFault(ErrorCode.INVALID_REQUEST, message)


# --- 1 identity ------------------------------------------------------------------------------


def check_room(roster: Roster, member_id: str, size_max: int) -> None:
    """Raises CoordinatorFault if the group is full and this is not a member."""
    if len(roster.subscriptions) >= size_max and member_id not in roster.subscriptions:
        raise CoordinatorFault(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def identify(draft: Draft, request: ConsumerHeartbeat) -> None:
    """Rebinds a static member, or resets a fenced one. Raises CoordinatorFault."""
    roster, member_id, instance_id = draft.roster, request.member_id, request.instance_id
    bound = roster.static_member_id(instance_id)
    if request.member_epoch != JOIN_EPOCH:
        check_identity(roster, member_id, instance_id)
        _check_epoch(roster.current_of(member_id), request)
    elif bound is not None and bound != member_id:
        _check_released(roster, bound, request)
        draft.replace_member(bound, member_id)
    elif member_id in roster.current and roster.current[member_id] != CurrentAssignment():
        draft.emit(CurrentRecord(roster.group_id, member_id, CurrentAssignment()))


def check_identity(roster: Roster, member_id: str, instance_id: str | None) -> None:
    """Raises CoordinatorFault unless this is a member, under its own instance id if it has one."""
    if instance_id is not None:
        bound = roster.static_member_id(instance_id)
        if bound is None:
            raise CoordinatorFault(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if bound != member_id:
            raise CoordinatorFault(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member"
                f" {bound}.",
            )
    elif member_id not in roster.subscriptions:
        raise CoordinatorFault(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {roster.group_id}.",
        )


def _check_released(roster: Roster, bound: str, request: ConsumerHeartbeat) -> None:
    """Raises unless the instance id is free: an active member of the new protocol keeps it."""
    is_classic = roster.subscriptions[bound].classic is not None
    if not is_classic and roster.current_of(bound).epoch != LEAVE_FOR_A_WHILE_EPOCH:
        raise CoordinatorFault(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join"
            f" the group because the instance id is owned by {bound} member.",
        )


def _check_epoch(current: CurrentAssignment, request: ConsumerHeartbeat) -> None:
    epoch = request.member_epoch
    if epoch == current.epoch:
        return
    # The answer with the newer epoch may have been lost. Then the member must own a part of what it
    # had been assigned there, or else it has been away for longer.
    if (
        epoch < current.epoch
        and epoch == current.previous_epoch
        and request.owned is not None
        and all(
            found <= current.assigned.get(topic_id, {}).keys()
            for topic_id, found in request.owned.items()
        )
    ):
        return
    relation = "greater" if epoch > current.epoch else "smaller"
    raise CoordinatorFault(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by"
        f" the group coordinator ({current.epoch}). The member must abandon all its partitions and"
        " rejoin.",
    )


# --- 2 subscription --------------------------------------------------------------------------


def updated_subscription(
    before: MemberSubscription | None, request: ConsumerHeartbeat
) -> MemberSubscription:
    """Returns the subscription updated with the fields that the request sets."""
    known = before or MemberSubscription()
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        known,
        instance_id=_newer(request.instance_id, known.instance_id),
        rack_id=_newer(request.rack_id, known.rack_id),
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=(
            known.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms
        ),
        server_assignor=_newer(request.server_assignor, known.server_assignor),
        topic_names=(
            known.topic_names
            if request.topic_names is None
            else tuple(sorted(set(request.topic_names)))
        ),
        topic_regex=(known.topic_regex if request.topic_regex is None else request.topic_regex),
        classic=None,
    )


def _newer(said: str | None, known: str | None) -> str | None:
    return known if said is None else said


def update_member(
    draft: Draft, member_id: str, subscription: MemberSubscription, occasion: DecisionContext
) -> bool:
    """Steps 2 and 3: records the subscription, and reassigns if it or the topics changed.

    Returns True if the subscription changed. Raises CoordinatorFault.
    """
    roster = draft.roster
    before = roster.subscriptions.get(member_id)
    regex_before = "" if before is None else before.topic_regex
    if subscription.topic_regex not in ("", regex_before):
        check_regex(subscription.topic_regex)
    if subscription != before:
        draft.emit(MemberRecord(roster.group_id, member_id, subscription))
        drop_unused_regexes(draft)
    names_before = () if before is None else before.topic_names
    has_new_names = subscription.topic_names != names_before
    has_new_regex = subscription.topic_regex != regex_before
    # An expression that is not evaluated yet raises the epoch once it is.
    is_resolved = not subscription.topic_regex or subscription.topic_regex in draft.roster.regexes
    must_bump = roster.epoch == 0 or has_new_names or (has_new_regex and is_resolved)
    if must_bump or occasion.is_metadata_new:
        bump_epoch(draft, occasion.image, is_forced=must_bump)
    if draft.roster.epoch > draft.roster.target_epoch:
        assign(draft, occasion)
    return has_new_names or has_new_regex


def drop_unused_regexes(draft: Draft) -> None:
    """Removes expressions that no member subscribes to."""
    readers = draft.roster.regex_readers()
    for regex in tuple(draft.roster.regexes):
        if regex not in readers:
            draft.emit(RegexRecord(draft.roster.group_id, regex, None))


def bump_epoch(draft: Draft, image: MetadataImage, *, is_forced: bool) -> None:
    """Raises the group's epoch if forced, or if its topics changed."""
    roster = draft.roster
    found = metadata_hash(roster.subscribed_topics(), image)
    if is_forced or found != roster.metadata_hash:
        draft.emit(EpochRecord(roster.group_id, roster.epoch + 1, found))
    if roster.has_topic_metadata:
        draft.emit(TopicMetadataRecord(roster.group_id, False))


# --- 3 target assignment ---------------------------------------------------------------------


def preferred_assignor(roster: Roster, rules: ConsumerRules) -> str:
    """Returns the assignor that most members request; the first configured one if none does."""
    votes = Counter(
        assignor
        for subscription in roster.subscriptions.values()
        if (assignor := subscription.server_assignor) in rules.assignors and assignor is not None
    )
    return votes.most_common(1)[0][0] if votes else rules.assignors[0]


def assign(draft: Draft, occasion: DecisionContext) -> None:
    """Computes the target of the group's epoch; writes only changes."""
    roster = draft.roster
    # Most members have the same subscription; its topics are looked up once.
    ids: dict[tuple[tuple[str, ...], str], frozenset[TopicId]] = {}
    members = []
    for member_id, subscription in roster.subscriptions.items():
        wanted = (subscription.topic_names, subscription.topic_regex)
        if wanted not in ids:
            ids[wanted] = topic_ids(roster.topics_of(subscription), occasion.image)
        members.append(
            AssignedMember(
                member_id=member_id,
                instance_id=subscription.instance_id,
                topic_ids=ids[wanted],
                previous=roster.target_of(member_id),
            )
        )
    assignor = ASSIGNORS[preferred_assignor(roster, occasion.rules)]
    counts = partition_counts(roster.subscribed_topics(), occasion.image)
    for member_id, target in assignor(members, counts).items():
        if roster.targets.get(member_id) != target:
            draft.emit(TargetRecord(roster.group_id, member_id, target))
    draft.emit(TargetEpochRecord(roster.group_id, roster.epoch))


# --- 4 reconciliation ------------------------------------------------------------------------


def reconcile_member(
    draft: Draft,
    member_id: str,
    image: MetadataImage,
    owned: Partitions | None,
    *,
    has_new_subscription: bool,
) -> CurrentAssignment:
    """Moves the member one step towards its target."""
    roster = draft.roster
    current = roster.current_of(member_id)
    moved = reconcile(
        current,
        Goal(
            epoch=roster.target_epoch,
            target=roster.target_of(member_id),
            topic_ids=topic_ids(roster.topics_of(roster.subscriptions[member_id]), image),
            is_free=roster.is_free,
            has_new_subscription=has_new_subscription,
        ),
        owned,
    )
    if moved is not current:
        draft.emit(CurrentRecord(roster.group_id, member_id, moved))
    return moved


def heartbeat(
    draft: Draft, request: ConsumerHeartbeat, occasion: DecisionContext
) -> HeartbeatAnswer:
    """Runs all four steps. The request is checked and has a member id. Raises CoordinatorFault."""
    rules, member_id = occasion.rules, request.member_id
    check_room(draft.roster, member_id, rules.size_max)
    had = draft.roster.current_of(member_id).assigned
    identify(draft, request)
    subscription = updated_subscription(draft.roster.subscriptions.get(member_id), request)
    has_new_subscription = update_member(draft, member_id, subscription, occasion)
    current = reconcile_member(
        draft,
        member_id,
        occasion.image,
        request.owned,
        has_new_subscription=has_new_subscription,
    )
    # A full request comes from a member that joins, or that got no answer to its last request.
    is_full = (
        request.rebalance_timeout_ms != NO_TIMEOUT
        and (request.topic_names is not None or request.topic_regex is not None)
        and request.owned is not None
    )
    must_tell = request.member_epoch == JOIN_EPOCH or is_full or current.assigned != had
    return HeartbeatAnswer(
        member_id=member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=rules.times_of(request.group_id).heartbeat_interval_ms,
        assignment=without_epochs(current.assigned) if must_tell else None,
    )


# --- leaving ---------------------------------------------------------------------------------


def leave_temporarily(draft: Draft, member_id: str) -> None:
    """A static member leaves temporarily: it keeps its target until its session ends.

    When it returns, it has another id and epoch 0, and owns nothing.
    """
    current = draft.roster.current_of(member_id)
    gone = replace(
        current,
        epoch=LEAVE_FOR_A_WHILE_EPOCH,
        assigned=with_assignment_epoch(without_epochs(current.assigned), JOIN_EPOCH),
        revoking=NOTHING_HELD,
    )
    draft.emit(CurrentRecord(draft.roster.group_id, member_id, gone))


def fence(draft: Draft, member_ids: Iterable[str], image: MetadataImage) -> None:
    """Removes members; the next heartbeat of another member reassigns their partitions."""
    for member_id in member_ids:
        draft.remove(member_id)
    drop_unused_regexes(draft)
    bump_epoch(draft, image, is_forced=True)


# --- regular expressions ---------------------------------------------------------------------


def apply_regexes(
    draft: Draft, found: dict[str, frozenset[str]], image: MetadataImage, now_ms: int
) -> None:
    """Applies the topics matched in `image`; members learn of them with their heartbeats."""
    roster = draft.roster
    readers = roster.regex_readers()
    has_changed = False
    for regex, topics in found.items():
        if regex not in readers:
            continue
        known = roster.regexes.get(regex)
        has_changed = has_changed or (known.topics if known else frozenset()) != topics
        draft.emit(
            RegexRecord(
                roster.group_id,
                regex,
                ResolvedRegex(topics=topics, version=image.version, timestamp_ms=now_ms),
            )
        )
    if draft.records:
        bump_epoch(draft, image, is_forced=has_changed)


def leave_answer(member_id: str, epoch: int) -> HeartbeatAnswer:
    """Returns the answer to a leaving member."""
    assert epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH), epoch
    return HeartbeatAnswer(member_id=member_id, member_epoch=epoch)
