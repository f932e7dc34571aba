#!/usr/bin/env bash
# Starts LocalStack's S3 on this machine, without docker, and creates the bucket.
#
#   PORT=4566 BUCKET=strandline PYTHON=python3.11 VENV=.venv ./up-host.sh
#
# Returns when the bucket is there. Log and process id lie beside this script; down-host.sh stops it.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3.11}
venv=${VENV:-.venv}
port=${PORT:-4566}
url=http://127.0.0.1:$port
# Starting takes 1 to 3 s, 5 s the first time; on a machine with ten at work for each core more than
# 50 s were seen.
wait_seconds=150

is_running() { [ -f localstack.pid ] && kill -0 "$(cat localstack.pid)" 2> /dev/null; }
is_healthy() {
    "$venv/bin/python" -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=2)' \
        "$url/_localstack/health" 2> /dev/null
}
fail() {
    echo "LocalStack $1; the end of $PWD/localstack.log:" >&2
    tail -n 20 localstack.log >&2
    ./down-host.sh > /dev/null
    exit 1
}

if is_running; then
    echo "LocalStack runs already (process $(cat localstack.pid)); ./down-host.sh stops it" >&2
    exit 1
fi
if ! [ "$venv/.installed" -nt requirements-host.lock ]; then
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    echo "installing LocalStack into $PWD/$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        -r requirements-host.lock
    touch "$venv/.installed"
fi

export SERVICES=s3 EAGER_SERVICE_LOADING=1 DISABLE_EVENTS=1 SKIP_SSL_CERT_DOWNLOAD=1
export DNS_ADDRESS=0 GATEWAY_LISTEN=127.0.0.1:$port LOCALSTACK_VOLUME_DIR=$PWD/.volume
"$venv/bin/python" -m localstack.runtime.main > localstack.log 2>&1 < /dev/null &
echo $! > localstack.pid

deadline=$((SECONDS + wait_seconds))
until is_healthy; do
    is_running || fail "stopped while starting"
    [ $SECONDS -lt $deadline ] || fail "was not ready within $wait_seconds s"
    sleep 0.2
done
S3_ENDPOINT=$url "$venv/bin/python" init/10_bucket.py
echo "LocalStack ready: $url (process $(cat localstack.pid))"
