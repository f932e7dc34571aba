"""A controller's listener with TLS, logins and an authorizer: who may ask what.

The rights are those of Kafka's ControllerApis: ClusterAction for what brokers ask, Alter for what
changes partitions, Describe for what lists them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from strandline.broker.authorization.config import STANDARD_AUTHORIZER
from strandline.broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from strandline.broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from strandline.broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from strandline.broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from strandline.broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from strandline.broker.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from strandline.broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from strandline.broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from strandline.broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from strandline.broker.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from strandline.broker.protocol.messages.fetch import FetchRequest, FetchResponse
from strandline.broker.protocol.messages.fetch_snapshot import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from strandline.broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from strandline.broker.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from strandline.broker.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from strandline.broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from strandline.broker.protocol.schema.config_resources import ConfigResourceType
from strandline.broker.protocol.schema.errors import ErrorCode
from strandline.broker.protocol.schema.schema import Request, Response
from strandline.broker.security.acl import AclOperation, AclPermission, PatternType, ResourceKind
from tests.support.certificates import Authority
from tests.support.controller import CONTROLLER_ID, ControllerProcess
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

PASSWORDS = {"admin": "one", "broker": "two", "operator": "three", "nobody": "four"}
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    + "".join(f' user_{user}="{password}"' for user, password in PASSWORDS.items())
    + ";"
)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def controller(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[ControllerProcess]:
    folder = tmp_path_factory.mktemp("controller")
    running = ControllerProcess(folder)
    running.settings |= {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("controller").write(folder / "own.pem")),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": JAAS,
        "connection.failed.authentication.delay.ms": "10",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
    }
    running.start()
    admin = client_of(running, authority, "admin")
    allow(admin, "broker", AclOperation.CLUSTER_ACTION)
    allow(admin, "operator", AclOperation.ALTER)
    yield running
    running.kill()


def client_of(
    controller: ControllerProcess, authority: Authority, user: str, password: str | None = None
) -> WireClient:
    """A connection by TLS of a user who has logged in. Raises PermissionError if that fails."""
    client = WireClient(controller.port)
    client._socket = authority.client_context().wrap_socket(
        client._socket, server_hostname="localhost"
    )
    client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 1)
    token = f"\0{user}\0{password or PASSWORDS[user]}".encode()
    answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 2)
    if answer.error_code:
        raise PermissionError(answer.error_message)
    return client


def allow(admin: WireClient, user: str, operation: AclOperation) -> None:
    rule = AclCreation(
        resource_type=ResourceKind.CLUSTER,
        resource_name="kafka-cluster",
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )
    answer = admin.ask(CreateAclsRequest(creations=[rule]), CreateAclsResponse, 3)
    assert [one.error_code for one in answer.results] == [0]


def registration() -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=1,
        cluster_id="another",
        incarnation_id=uuid.uuid4(),
        listeners=[],
        features=[],
    )


# What brokers ask, with the error of one who may, and has no registration.
OF_BROKERS: dict[str, tuple[Request, type[Response], int, ErrorCode]] = {
    "AlterPartition": (
        AlterPartitionRequest(broker_id=1, topics=[]),
        AlterPartitionResponse,
        3,
        ErrorCode.STALE_BROKER_EPOCH,
    ),
    "BrokerRegistration": (
        registration(),
        BrokerRegistrationResponse,
        4,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
    ),
    "BrokerHeartbeat": (
        BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=0,
            current_metadata_offset=0,
            want_fence=False,
            want_shut_down=False,
        ),
        BrokerHeartbeatResponse,
        2,
        ErrorCode.STALE_BROKER_EPOCH,
    ),
    "AllocateProducerIds": (
        AllocateProducerIdsRequest(broker_id=1, broker_epoch=0),
        AllocateProducerIdsResponse,
        0,
        ErrorCode.STALE_BROKER_EPOCH,
    ),
    "AssignReplicasToDirs": (
        AssignReplicasToDirsRequest(broker_id=1, directories=[]),
        AssignReplicasToDirsResponse,
        0,
        ErrorCode.STALE_BROKER_EPOCH,
    ),
    "Fetch": (
        FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]),
        FetchResponse,
        17,
        ErrorCode.INVALID_REQUEST,
    ),
    "FetchSnapshot": (
        FetchSnapshotRequest(topics=[]),
        FetchSnapshotResponse,
        1,
        ErrorCode.INVALID_REQUEST,
    ),
    "Envelope": (
        EnvelopeRequest(request_data=b"", client_host_address=b"\x7f\0\0\1"),
        EnvelopeResponse,
        0,
        ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE,
    ),
}
# What operators ask, for which they need Alter, or Describe, which it contains.
OF_OPERATORS: dict[str, tuple[Request, type[Response], int]] = {
    "ElectLeaders": (ElectLeadersRequest(topic_partitions=None), ElectLeadersResponse, 2),
    "AlterPartitionReassignments": (
        AlterPartitionReassignmentsRequest(topics=[]),
        AlterPartitionReassignmentsResponse,
        1,
    ),
    "ListPartitionReassignments": (
        ListPartitionReassignmentsRequest(),
        ListPartitionReassignmentsResponse,
        0,
    ),
    "UnregisterBroker": (UnregisterBrokerRequest(broker_id=9), UnregisterBrokerResponse, 0),
    "DescribeUserScramCredentials": (
        DescribeUserScramCredentialsRequest(users=None),
        DescribeUserScramCredentialsResponse,
        0,
    ),
}


@pytest.mark.parametrize("name", OF_BROKERS)
def test_what_brokers_ask_needs_the_right_to_act_for_the_cluster(
    controller: ControllerProcess, authority: Authority, name: str
) -> None:
    request, kind, version, own_error = OF_BROKERS[name]
    codes = []
    for user in ("nobody", "operator", "broker"):
        with client_of(controller, authority, user) as client:
            codes.append(getattr(client.ask(request, kind, version), "error_code"))  # noqa: B009
    assert codes == [DENIED, DENIED, own_error]


@pytest.mark.parametrize("name", OF_OPERATORS)
def test_what_changes_partitions_needs_the_right_to_alter_the_cluster(
    controller: ControllerProcess, authority: Authority, name: str
) -> None:
    request, kind, version = OF_OPERATORS[name]
    denied = []
    for user in ("nobody", "broker", "operator"):
        with client_of(controller, authority, user) as client:
            code = getattr(client.ask(request, kind, version), "error_code")  # noqa: B009
            denied.append(code == DENIED)
    assert denied == [True, True, False]


def test_properties_of_the_controller_need_the_right_to_describe_them(
    controller: ControllerProcess, authority: Authority
) -> None:
    resource = DescribeConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name=str(CONTROLLER_ID)
    )
    request = DescribeConfigsRequest(resources=[resource])
    codes = []
    for user in ("nobody", "admin"):
        with client_of(controller, authority, user) as client:
            (result,) = client.ask(request, DescribeConfigsResponse, 4).results
            codes.append(result.error_code)
    assert codes == [DENIED, 0]


def test_nobody_is_let_in_without_tls_and_a_password(
    controller: ControllerProcess, authority: Authority
) -> None:
    with WireClient(controller.port) as plain:
        plain.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        # An alert of TLS, and no answer.
        assert plain._socket.recv(1) == b"\x15"
    with pytest.raises(PermissionError):
        client_of(controller, authority, "broker", "wrong")


def test_a_request_before_the_login_ends_the_connection(
    controller: ControllerProcess, authority: Authority
) -> None:
    client = WireClient(controller.port)
    client._socket = authority.client_context().wrap_socket(
        client._socket, server_hostname="localhost"
    )
    client.send(ElectLeadersRequest(topic_partitions=None), 2)
    assert client.closed_by_broker()
