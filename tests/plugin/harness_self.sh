#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# harness_self.sh HARNESS FAKE.so OTHER.so: the harness finds nothing in the fake plugin, and in each of its faults the fault.
# A fault is caught by the case named beside it, run with the version named.
harness=$1 fake=$2 other=$3 bad=0 log=$(mktemp)
trap 'rm -f "$log"' EXIT

caught() { # fault case [version [text that the finding has]]
    case ${4:-.} in # time itself is what finds these; for the others a slow machine gets what it needs
    hangs | 'not told' | never) limit=4 patience=2 ;;
    *) limit=60 patience=30 ;;
    esac
    FAKE_FAULT=$1 "$harness" "$fake" --with "$other" --only "$2" --version "${3:-12}" --limit $limit --patience $patience \
        --max 300000 >"$log" 2>&1
    status=$?
    if [ $status -ne 1 ] || ! grep -q "$2: FAILED" "$log" || ! grep -q "${4:-.}" "$log"; then
        echo "fault $1 is not caught by $2 (exit code $status):"
        cat "$log"
        bad=1
    fi
}

FAKE_FAULT='' "$harness" "$fake" --with "$other" --limit 120 --patience 15 --max 5000000 >"$log" 2>&1 || {
    echo "the harness finds faults in the right plugin:"
    cat "$log"
    bad=1
}
caught name table 12 'no name'
caught missing table 12 'NULL close'
caught names exports 12 'another name'
caught props props 12 'leaves a field'
caught props props 6 'leaves a field'
caught samename props 12 'both called'
caught huge props 9 maxP2pBytes
caught finalize twice 12 'finalize(NULL)'
caught data sizes 12 'is wrong'
caught data sizes 6 'is wrong'
caught outside sizes 12 'behind the buffer'
caught lazy sizes 12 hangs
caught mhandle sizes 12 'NULL mhandle'
caught size unequal 9 'is the size'
caught extra unequal 12 'test wrote size'
caught few inflight 12 'not taken'
caught few inflight_groups 12 'not taken'
caught lost order 12 hangs
caught hint order 12 'left 0x1'
caught swap order 12 'rank'
caught tags grouped 12 'rank'
caught truncate too_small 12 'is done'
caught block connecting 12 hangs
caught block oneself 12 hangs
caught close close_in_flight 12 fails
caught leak churn 12 'files more'
caught late close_in_flight 12 'was written after'
caught silent death_receiving 12 'not told'
caught silent death_sending 12 'not told'
caught silent peer_closes 12 'never'
caught quiet death_idle 12 'no warning'
caught trusting handles 12 'signal\|SEGV'
caught tuner_raise tuner 12 'from -1'
caught tuner_outside tuner 12 'outside of the table'
caught tuner_error tuner 12 'would fail'
caught tuner_channels tuner 12 channels
caught profiler_mask profiler 12 'the mask as it was'
caught profiler_context profiler 12 'no context'
caught profiler_handle profiler 12 unwritten
caught profiler_args profiler 12 'signal\|SEGV\|null pointer'
caught signals list_idle 12 'signal 12'
caught quiet list_mixed 12 'without a warning'
caught once again 12 'init of'
caught leak again 12 'files more'
exit $bad
