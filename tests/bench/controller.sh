#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkbench controller on the CPU executor: controller.sh MKBENCH FOLDER. It says nothing about speed: every fixed number
# and the controller are there, the halves are kept apart, the picture has a point a measurement, wrong options end with 2.
bench=$1 folder=$2
fail() {
    echo "$*"
    [ -z "$text" ] || echo "$text"
    exit 1
}
mkdir -p "$folder" && rm -f "$folder"/*
text=$("$bench" controller --cpu --nodes 2 --blocks 6 --shape 256,512,256 --shape 64,96,160 --ratio 1,2 --pairs 6 --calls 1 \
    --json "$folder/a.json" --svg "$folder/a.svg" 2>&1) || fail "exit $?"
count() { grep -c "$2" "$folder/$1"; }
[ "$(count a.json '"best_fixed":')" -eq 4 ] || fail "not four cases"
[ "$(count a.json '"controlled": true')" -eq 4 ] || fail "no controller"
[ "$(count a.json '"comm_blocks": 0')" -eq 4 ] && [ "$(count a.json '"comm_blocks": 3')" -eq 4 ] || fail "the sweep is not 0 to 3"
[ "$(count a.json '"comm_blocks": 4')" -eq 0 ] || fail "more than half of the blocks communicate"
grep -q '"best_to_controller_mean": [0-9.]*[1-9]' "$folder/a.json" || fail "no mean"
[ "$(count a.svg 'circle class="point"')" -eq 4 ] && [ "$(count a.svg 'circle class="best"')" -eq 4 ] &&
    [ "$(count a.svg 'circle class="dot"')" -eq 8 ] || fail "not a point a measurement"
printf '%s\n' "$text" | grep -q '4 cases: best fixed number of each / controller: geometric mean [0-9]' || fail "no sum"

text=$(MK_TUNER=off "$bench" controller --cpu --nodes 1 --ranks-per-node 2 --blocks 4 --shape 130,70,33 --most 1 --pairs 2 \
    --calls 1 --json "$folder/b.json" 2>&1) || fail "exit $?"
[ "$(count b.json '"controlled": false')" -eq 1 ] || fail "MK_TUNER=off and a controller"
[ "$(count b.json '"comm_blocks": [0-9]')" -eq 2 ] || fail "--most 1 is not 0 and 1"
for wrong in "--ratio 0" "--pairs 1" "--most 0" "--shape 1,2" "--nodes" extra; do
    # shellcheck disable=SC2086
    "$bench" controller --cpu $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || fail "mkbench controller $wrong: not exit 2"
done
exit 0
