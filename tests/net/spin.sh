#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# spin.sh MODEL [DEFINE]: checks a Spin model exhaustively; with DEFINE, a broken variant that must be caught.
model=$1
define=$2
if ! command -v spin > /dev/null || ! command -v cc > /dev/null; then
    echo "skip: net.ring_model: spin is not installed"
    exit 77
fi
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
spin ${define:+-D$define} -a "$model" || exit 1
cc -O2 -w -DSAFETY -DMEMLIM=1024 -o pan pan.c || exit 1
ulimit -t 60 # processor time: on a machine that does other work the search takes its time (2 s alone)
./pan -m1000000 > out 2>&1 || { status=$?; cat out; echo "the search ended with status $status"; exit 1; }
grep -E "errors:|states, stored|error:|invalid end|assertion" out
if grep -q "max search depth too small" out; then
    exit 1
fi
if [ -n "$define" ]; then
    grep -q "errors: [1-9]" out && echo "$define: caught" && exit 0
    exit 1
fi
grep -q "errors: 0" out
