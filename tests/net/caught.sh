#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# caught.sh N PROGRAM ARGS: runs a program built with TSan. N = 0: it must be clean; else TSan must report a race.
mutation=$1
shift
export TSAN_OPTIONS="exitcode=66:halt_on_error=1"
out=$("$@" 2>&1)
status=$?
echo "$out" | grep -E "conformance|WARNING|SUMMARY"
if echo "$out" | grep -q "unexpected memory mapping"; then
    echo "skip: net.conformance: TSan cannot run on this kernel"
    exit 77
fi
if [ "$mutation" = 0 ]; then
    exit $status
fi
[ $status = 66 ] && echo "mutation $mutation: caught by TSan" && exit 0
echo "mutation $mutation: not caught (status $status)"
exit 1
