#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkbench gemm_ar on the CPU executor: gemm_ar.sh MKBENCH FILE. It says nothing about speed: rates follow from ratios, the
# link is looked at, results are checked, the JSON has every field that a reader of the GPU's figures needs.
bench=$1 file=$2
fail() {
    echo "$*"
    [ -z "$text" ] || echo "$text"
    exit 1
}
number() { sed -n "s/^ *\"$1\": \(-\{0,1\}[0-9.e+-]*\),\{0,1\}$/\1/p" "$file" | sed -n "${2:-1}p"; }
near() { awk "BEGIN {exit !(($1) > 0.999 * ($2) && ($1) < 1.001 * ($2))}" || fail "$3: $1, not $2"; }

# 2 x 1: all of C, bf16, leaves a rank
rm -f "$file"
text=$("$bench" gemm_ar --cpu --nodes 2 --shape 256,512,256 --link-gbps 1 --link-latency-us 50 --pairs 1 --calls 1 \
    --json "$file" 2>&1) || fail "exit $?"
for field in link_alone_gbps link_alone_us wire_us_measured blocks comm_blocks tiles waves wire_bytes wire_us bound_us factor rows_checked; do
    awk "BEGIN {exit !(\"$(number $field)\" > 0)}" && [ -n "$(number $field)" ] || fail "$field is \"$(number $field)\""
done
grep -q '"complete": true' "$file" || fail "not complete"
near "$(number link_latency_us)" 50 "latency"
near "$(number rows_checked)" "256 / 32" "rows checked"
near "$(number wire_bytes)" "256 * 512 * 2 + 16" "bytes of an exchange"
near "$(number wire_us)" "$(number wire_bytes) * 8e-3 / 1 + 50" "bytes / rate + latency"
printf '%s\n' "$text" | grep -q 'checked: 8 of 256 rows' || fail "the result was not checked"
awk "BEGIN {exit !($(number link_alone_us) >= 50)}" || fail "a small write takes $(number link_alone_us) us of 50"
near "$(number wire_us_measured)" "$(number wire_us) - 50 + $(number link_alone_us)" "bytes / rate + measured latency"
awk "BEGIN {exit !($(number link_alone_gbps) <= 1.02)}" || fail "the link runs above its rate"

# half the rate at twice the ratio, on the same T_compute; intervals from six pairs on
rm -f "$file"
text=$("$bench" gemm_ar --cpu --nodes 2 --shape 64,96,160 --ratio 2,1 --pairs 6 --calls 1 --json "$file" 2>&1) || fail "exit $?"
[ "$(grep -c '"ratio_asked"' "$file")" -eq 2 ] || fail "not two ratios in $file"
[ "$(grep -c '"t_comm": {.*"to_fused_low": [0-9]' "$file")" -eq 2 ] || fail "T_comm without an interval"
[ "$(grep -c '"unfused": {' "$file")" -eq 2 ] || fail "the parts in a row are not there"
near "$(number link_gbps 2)" "2 * $(number link_gbps 1)" "rates of the ratios"

rm -f "$file"
text=$("$bench" gemm_ar --cpu --nodes 2 --ranks-per-node 2 --set small --shape 1,1,1 --set nothing --json "$file" 2>&1)
[ $? -eq 2 ] && [ ! -e "$file" ] || fail "an unknown set is not exit 2"
text=$("$bench" gemm_ar --cpu --nodes 1 --ranks-per-node 3 --graph --check 1 --shape 130,70,33 --json "$file" 2>&1) || fail "exit $?"
near "$(number rows_checked)" 130 "rows checked"
[ "$(number link_alone_gbps)" = 0 ] || fail "a link within a node"
for wrong in "--ratio 0" "--ratio x" "--ratio 1 --link-gbps 3" "--pairs 0" "--shape 1,2" "--shape 1,2,3x" "--nodes" extra; do
    # shellcheck disable=SC2086
    "$bench" gemm_ar --cpu $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || fail "mkbench gemm_ar $wrong: not exit 2"
done
exit 0
