#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# pair.sh CACHE SCRIPT [ARG...]: two machines joined by a network, the same script in both, $MACHINE is 1 or 2. Ends with
# the first status that is not 0; when one machine fails the other is given 60 s, then its own limit ends it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$1
sockets=$(mktemp -d) # the name of a socket must be short
pids=()
end() {
    local pid
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
    done
    wait
    rm -rf "$sockets"
}
trap end EXIT
trap 'exit 1' INT TERM

mkdir -p "$cache"
setpriv --pdeathsig TERM "$here/run.sh" -n two_machines -s 1 -m 1 -t 420 -l "$sockets/wire" "$@" >"$cache/two_machines.1.log" 2>&1 &
pids+=($!)
for ((i = 0; i < 3000; i++)); do # the one that connects must come second
    [ ! -S "$sockets/wire" ] || break
    kill -0 "${pids[0]}" 2>/dev/null || break
    sleep 0.1
done
if [ ! -S "$sockets/wire" ]; then
    rc=0
    wait "${pids[0]}" || rc=$?
    cat "$cache/two_machines.1.log"
    exit "$rc"
fi
setpriv --pdeathsig TERM "$here/run.sh" -n two_machines -s 2 -m 2 -t 420 -c "$sockets/wire" "$@" >"$cache/two_machines.2.log" 2>&1 &
pids+=($!)

status=0
for i in 1 2; do
    rc=0
    wait "${pids[i - 1]}" || rc=$?
    [ "$status" -ne 0 ] || status=$rc
    sed "s/^/[$i] /" "$cache/two_machines.$i.log"
done
pids=()
exit "$status"
