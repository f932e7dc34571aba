#!/usr/bin/env bash
# Kafka's own tool of that name, where librdkafka's tests call it.
set -euo pipefail
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "$STRANDLINE_JAVA_LIBRARIES/*" \
    org.apache.kafka.tools.AclCommand "$@"
