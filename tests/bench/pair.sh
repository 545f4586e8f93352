#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkbench pair in short: pair.sh MKBENCH FILE. It says nothing about speed: every row is there, and what is measured was
# decided as its name says (mkbench ends with 1 otherwise).
bench=$1 file=$2
rm -f "$file"
text=$("$bench" pair --rounds 3 --calls 20 --json "$file" 2>&1) || { echo "exit $?: $text"; exit 1; }
[ "$(grep -c '"many": {' "$file")" -eq 6 ] || { echo "not six rows in $file"; exit 1; }
for wrong in "--rounds 0" "--calls x" "extra"; do
    # shellcheck disable=SC2086
    "$bench" pair $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || { echo "mkbench pair $wrong: not exit 2"; exit 1; }
done
