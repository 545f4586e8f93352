#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkbench hook in short: hook.sh MKBENCH OBJECT FOLDER FILE. It says nothing about speed: every row is there, what is
# called with hooks is hooked and what is called without is not (mkbench ends with 1 otherwise).
bench=$1 object=$2 folder=$3 file=$4
rm -f "$file"
case "$(ldd "$object" 2>/dev/null)" in
*libasan*|*libtsan*) echo "skip: bench.hook: a sanitizer's object in LD_PRELOAD"; exit 77 ;;
esac
text=$("$bench" hook "$object" "$folder" --pairs 3 --calls 200 --json "$file" 2>&1) || { echo "exit $?: $text"; exit 1; }
[ "$(grep -c '"cost": {' "$file")" -eq 10 ] || { echo "not ten rows in $file"; exit 1; }
# an object that does not intercept is no measurement
"$bench" hook "$folder/libhook_lib.so" "$folder" --pairs 1 --calls 1 >/dev/null 2>&1
[ $? -eq 1 ] || { echo "an object without hooks was measured"; exit 1; }
for wrong in "" "$object" "$object $folder extra" "$object $folder --pairs 0" "$object $folder --calls x"; do
    # shellcheck disable=SC2086
    "$bench" hook $wrong >/dev/null 2>&1
    [ $? -eq 2 ] || { echo "mkbench hook $wrong: not exit 2"; exit 1; }
done
