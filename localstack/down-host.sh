#!/usr/bin/env bash
# Stops what up-host.sh started. LocalStack keeps nothing: its buckets are gone afterwards.
set -euo pipefail
cd "$(dirname "$0")"
[ -f localstack.pid ] || { echo "LocalStack does not run from here"; exit 0; }
pid=$(cat localstack.pid)
kill "$pid" 2> /dev/null || true
for _ in $(seq 50); do
    kill -0 "$pid" 2> /dev/null || break
    sleep 0.2
done
kill -9 "$pid" 2> /dev/null || true
rm -f localstack.pid
echo "LocalStack stopped"
