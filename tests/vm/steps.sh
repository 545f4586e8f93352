#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# For the scripts that run inside the machine: step NAME SECONDS COMMAND... runs one bounded check and goes on after a
# failure; finish ends with the status of all.
failed=()
export MK_TIMEOUT=${MK_TIMEOUT:-20} # processors are emulated, and shared with whatever runs on the host

step() {
    local name=$1 limit=$2 begin=$SECONDS rc=0
    shift 2
    echo "== $name"
    timeout -k 5 "$limit" "$@" || rc=$?
    case $rc in
    0) echo "== $name: ok, $((SECONDS - begin)) s" ;;
    77)
        echo "== $name: skipped in the machine made for it"
        failed+=("$name")
        ;;
    *)
        echo "== $name: FAILED, status $rc after $((SECONDS - begin)) s of $limit"
        failed+=("$name")
        ;;
    esac
}

finish() {
    if [ ${#failed[@]} -gt 0 ]; then
        printf 'failed: %s\n' "${failed[@]}"
        exit 1
    fi
    exit 0
}
