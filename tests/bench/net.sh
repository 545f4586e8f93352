#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkbench net in its shortest form: net.sh MKBENCH PROVIDER FILE. It says nothing about speed: it runs, and the JSON
# has every row with both sides in it.
bench=$1 provider=$2 file=$3
rm -f "$file"
text=$("$bench" net --provider "$provider" --pairs 1 --rounds 1 --sizes 64K,1M --json "$file" 2>&1)
status=$?
case $text in *"not on this machine"*)
    echo "skip: bench.net: provider $provider is not here"
    exit 77
    ;;
esac
[ $status -eq 0 ] || { echo "$text"; echo "exit $status"; exit 1; }
rows=$(grep -c '"what": "' "$file")
[ "$rows" -eq 7 ] || { echo "$rows rows in $file, not 4 + 3"; exit 1; }
for side in raw engine batch1 batch8; do
    if grep "\"$side\": {\"median\": " "$file" | grep -q '"median": \(0\|null\|-\)[,}]'; then
        echo "$side: a figure that is none"
        exit 1
    fi
    grep -q "\"$side\": {\"median\": [0-9]" "$file" || { echo "no figure of $side"; exit 1; }
done
for wrong in "--pairs 2" "--rounds 0" "--null --only proxy" "--sizes 5M" "--sizes x" "--only nothing" "extra" "--provider"; do
    # shellcheck disable=SC2086
    "$bench" net $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || { echo "mkbench net $wrong: not exit 2"; exit 1; }
done
exit 0
