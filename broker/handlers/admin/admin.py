"""The handlers of the admin APIs, by API key, for the composition root."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.broker.cluster.replicas.replica_moves import ReplicaMoves
from strandline.broker.handlers.admin.acls import AclHandlers
from strandline.broker.handlers.admin.alter_configs import AlterConfigsHandlers
from strandline.broker.handlers.admin.client_quotas import ClientQuotaHandlers
from strandline.broker.handlers.admin.configs import ConfigHandlers
from strandline.broker.handlers.admin.log_dirs import LogDirHandler
from strandline.broker.handlers.admin.partition_admin import PartitionAdminHandlers
from strandline.broker.handlers.admin.scram_users import ScramUserHandlers
from strandline.broker.handlers.dispatch.dispatch import Handler
from strandline.broker.handlers.dispatch.features import FeatureHandlers
from strandline.broker.handlers.services.services import Services
from strandline.broker.protocol.schema.api import ApiKey
from strandline.storage.local.log_dirs.log_dirs import LogDirs


def make_admin_handlers(
    services: Services, log_dirs: LogDirs, moves: ReplicaMoves
) -> Mapping[ApiKey, Handler]:
    """Makes the handlers for configurations, partitions, quotas, users and log folders."""
    configs = ConfigHandlers(services)
    alter_configs = AlterConfigsHandlers(services)
    partitions = PartitionAdminHandlers(services)
    quotas = ClientQuotaHandlers(services)
    users = ScramUserHandlers(services)
    features = FeatureHandlers(services)
    folders = LogDirHandler(services, log_dirs, moves)
    acls = AclHandlers(services)
    return {
        ApiKey.DESCRIBE_ACLS: acls.describe_acls,
        ApiKey.CREATE_ACLS: acls.create_acls,
        ApiKey.DELETE_ACLS: acls.delete_acls,
        ApiKey.ALTER_CONFIGS: alter_configs.alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs.incremental_alter_configs,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_client_quotas,
        ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_client_quotas,
        ApiKey.ALTER_REPLICA_LOG_DIRS: folders.alter_replica_log_dirs,
        ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
        ApiKey.LIST_CONFIG_RESOURCES: configs.list_config_resources,
        ApiKey.DESCRIBE_LOG_DIRS: folders.describe_log_dirs,
        ApiKey.DESCRIBE_PRODUCERS: partitions.describe_producers,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: partitions.describe_topic_partitions,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe_user_scram_credentials,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter_user_scram_credentials,
        ApiKey.UPDATE_FEATURES: features.update_features,
        ApiKey.UNREGISTER_BROKER: features.unregister_broker,
        ApiKey.ELECT_LEADERS: partitions.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: partitions.alter_partition_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: partitions.list_partition_reassignments,
    }
