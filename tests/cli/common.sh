#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# Sourced by the scripts here: `. common.sh` after bin and case are set. Works in a folder of its own.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
rc=-1
: >out
: >err
fail() {
    echo "FAILED $case: $*"
    echo "status $rc; stdout:"; head -c 3000 out; echo "stderr:"; head -c 3000 err
    exit 1
}
want_rc() { [ "$rc" = "$1" ] || fail "status $rc, expected $1"; }
want_in() { grep -q -- "$2" "$1" || fail "'$2' is not in $1"; }
want_not_in() { grep -q -- "$2" "$1" && fail "'$2' is in $1"; return 0; }
# gone PID: dead within 10 s
gone() {
    i=0
    while kill -0 "$1" 2>/dev/null && [ "$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1)" != Z ]; do
        i=$((i + 1))
        [ $i -lt 100 ] || fail "process $1 still lives"
        sleep 0.1
    done
}
# appears FILE: there and not empty within 10 s
appears() {
    i=0
    while [ ! -s "$1" ]; do
        i=$((i + 1))
        [ $i -lt 100 ] || fail "no $1"
        sleep 0.1
    done
}
