#!/usr/bin/env bash
# Stands in for Kafka's script of that name where librdkafka's tests call it: strandline does it.
set -euo pipefail
action='' topic='' options=()
while [ $# -gt 0 ]; do
    case $1 in
        --create | --alter | --delete) action=${1#--} ;;
        --topic) topic=$2; shift ;;
        --bootstrap-server | --config | --partitions | --replication-factor)
            options+=("$1" "$2")
            shift
            ;;
        *) echo "kafka-topics.sh: $1 is not known to this stand-in" >&2; exit 1 ;;
    esac
    shift
done
# Kafka's script deletes without asking.
[ "$action" != delete ] || options+=(--yes)
exec "${STRANDLINE_PYTHON:-python3}" -m strandline topic "$action" "$topic" "${options[@]}"
