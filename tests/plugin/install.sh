#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# install.sh CMAKE BUILD SOURCE CC GENERATOR: installs into a prefix, moves it, and builds the README's example from
# there twice, through pkg-config and through find_package. What must not be installed is looked for, too.
set -eu
cmake=$1 build=$2 source=$3 cc=$4 generator=$5
scratch=$build/tests/install
rm -rf "$scratch"
"$cmake" --install "$build" --prefix "$scratch/first" >"$build/tests/install.log"
mkdir -p "$scratch"
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved
libdir=$(dirname "$(find "$prefix" -name libnccl-net-mkernel.so)")

fail() { echo "$*"; exit 1; }
for file in include/mkernel.h include/mkernel_device.h include/mk/dev/ring.h; do
    [ -f "$prefix/$file" ] || fail "$file is not installed"
done
[ -z "$(find "$prefix/include/mk" -maxdepth 1 -name '*.h')" ] || fail "internal headers are installed"
for link in libnccl-tuner-mkernel.so libnccl-profiler-mkernel.so libmkernel.so; do
    [ "$(readlink "$libdir/$link")" = libnccl-net-mkernel.so ] || fail "$link is no link to libnccl-net-mkernel.so"
done
if grep -rIl "$scratch/first\|$source" "$prefix"; then
    fail "these installed files hold an absolute path"
fi

example=$source/tests/e2e/example.c
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs mkernel)
    # shellcheck disable=SC2086
    "$cc" -std=c11 -Wall -Wextra -Werror "$example" -o "$scratch/by_pkgconfig" $flags -lm
    LD_LIBRARY_PATH=$libdir "$scratch/by_pkgconfig"
else
    echo "no pkg-config: that half is left out"
fi

mkdir -p "$scratch/user"
cat >"$scratch/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(mkernel 0.1 REQUIRED)
add_executable(by_package $example)
target_link_libraries(by_package PRIVATE mkernel::mkernel m)
END
"$cmake" -S "$scratch/user" -B "$scratch/user/build" -G "$generator" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$prefix" >"$scratch/user.log" || { cat "$scratch/user.log"; exit 1; }
"$cmake" --build "$scratch/user/build" >>"$scratch/user.log" || { cat "$scratch/user.log"; exit 1; }
"$scratch/user/build/by_package"
