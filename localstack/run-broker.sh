#!/usr/bin/env bash
# Runs a broker over the LocalStack that up-host.sh started; further arguments go to `strandline serve`.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv/bin/strandline ] || make --silent venv
# LocalStack accepts any credentials, but boto3 wants some.
export AWS_ACCESS_KEY_ID=${AWS_ACCESS_KEY_ID:-test} AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:-test}
exec .venv/bin/strandline serve --config localstack/broker.properties \
    --set "strandline.remote.s3.endpoint.url=http://127.0.0.1:${PORT:-4566}" "$@"
