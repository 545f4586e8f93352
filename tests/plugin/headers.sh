#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# headers.sh CC INCLUDE: the installed headers compile alone, as C11 and as C++17, without a warning.
set -u
cc=$1 include=$2 failed=0
cxx=$(command -v g++ || command -v c++ || command -v clang++) || { echo "skip: plugin.headers: no C++ compiler"; exit 77; }
strict="-Wall -Wextra -Wpedantic -Werror -fsyntax-only"

for header in mkernel.h mkernel_device.h; do
    text="#include <$header>
int main(void) { return MK_SOMETHING; }"
    [ $header = mkernel.h ] && text=$(echo "$text" | sed 's/MK_SOMETHING/MK_SUCCESS/') ||
        text=$(echo "$text" | sed 's/MK_SOMETHING/(int)mk_lane()/')
    # mkernel.h asks for nothing but the standard; the device side needs POSIX's clock.
    [ $header = mkernel.h ] && posix= || posix=-D_POSIX_C_SOURCE=200809L
    echo "$text" | $cc -x c -std=c11 $posix $strict -I"$include" - || failed=1
    echo "$text" | $cxx -x c++ -std=c++17 $posix $strict -I"$include" - || failed=1
done
exit $failed
