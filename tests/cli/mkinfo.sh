#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkinfo.sh BIN CASE SOURCE_DIR FAKE_CUDA_DIR: one test of mkinfo.
set -u
bin=$1
case=$2
source_dir=$3
fake=$4
. "$(dirname "$0")/common.sh"
run() {
    timeout -k 5 50 "$bin/mkinfo" "$@" >out 2>err </dev/null
    rc=$?
}

test_all() {
    export MK_NET=loop
    run
    want_rc 0
    [ ! -s err ] || fail "something on stderr"
    for section in machine gpus network rdma multiply libraries transports 'in use' settings; do want_in out "^$section  "; done
    want_in out "  cores  *$(nproc)"
    want_in out '  lo  *up'
    want_in out '  loop  *works: loop'
    want_in out '  between nodes  *loop'
    want_in out '  MK_NET  *loop$'
    want_in out 'GFLOP/s'
    want_not_in out '[[:blank:]]$'
}

test_gpus() {
    LD_LIBRARY_PATH=$fake run
    want_rc 0
    want_in out 'gpu0  *Pretend GPU 10, 141 GiB, 132 SMs, compute capability 9.0'
    want_in out 'gpu1  *cannot be asked'
    LD_LIBRARY_PATH=$fake FAKE_CUDA_ERROR=804 run
    want_rc 0
    want_in out 'none: cuInit gives error 804'
}

test_settings() {
    MK_CHUNK=1M run --settings
    want_rc 0
    names=$(sed -n 's/^ *X([a-z_]*, "\(MK_[A-Z_]*\)".*/\1/p' "$source_dir/include/mk/param.h")
    [ "$(echo "$names" | wc -l)" -gt 25 ] || fail "settings not found in param.h"
    for name in $names; do want_in out "^$name "; done
    want_in out '^MK_CHUNK  *1048576  *256K '
}

test_json() {
    run --json i.json
    want_rc 0
    [ ! -s out ] || fail "something on stdout"
    for section in machine gpus network libraries transports in_use settings; do want_in i.json "^  \"$section\": {"; done
    want_in i.json '"memory_bytes": [0-9]'
    want_in i.json '"fp32_512_gflops": [0-9]'
    if command -v python3 >/dev/null; then python3 -m json.tool i.json >/dev/null || fail "no JSON"; fi
}

test_usage() {
    run --nothing; want_rc 2; want_in err '--nothing is not an option'
    run extra; want_rc 2
    run --json; want_rc 2; want_in err '--json needs a value'
    MK_TYPO=1 run; want_rc 2; want_in err 'MK_TYPO'
    MK_BATCH=9 run; want_rc 2; want_in err 'MK_BATCH=9'
    run --json no/such/x; want_rc 1; want_in err 'no/such/x: No such file'
    run --help; want_rc 0; want_in out 'usage: mkinfo'
    run --version; want_rc 0; want_in out '^mkinfo [0-9]'
    timeout 20 "$bin/mkinfo" --settings >/dev/full 2>err; rc=$?
    want_rc 1; want_in err 'standard output: No space left'
}

test_$case
echo "ok $case"
