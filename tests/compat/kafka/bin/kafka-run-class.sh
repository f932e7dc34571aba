#!/usr/bin/env bash
# Stands in for Kafka's script of that name where librdkafka's tests call it.
set -euo pipefail
exec java -cp "$CLASSPATH:$STRANDLINE_JAVA_LIBRARIES/*" "$@"
