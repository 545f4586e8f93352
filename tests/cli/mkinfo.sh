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

# profile RANK FILE: 100 all-reduces of 1 MiB by one of four ranks, 50 of them timed
profile() {
    cat >"$2" <<EOF
{"format": "mkernel profile", "version": 1, "host": "h", "pid": $1, "seconds": 10.5, "state": "on",
 "cost": {"events": 1000, "seconds": 0.021}, "forgotten": 0, "communicators": [
  {"id": "00000000000000aa", "rank": $1, "ranks": 4, "nodes": 2, "name": "tp", "table": 5, "open": false, "api_calls": 100,
   "collectives": 100, "p2p": 3, "no_room": 0, "kinds": [
   {"collective": "AllReduce", "dtype": "bfloat16", "algorithm": "RING", "protocol": "SIMPLE", "channels": 8,
    "size_class": 20, "clock": "gpu", "calls": 100, "bytes": [1048576, 1048576, 104857600], "host_ns": 500000,
    "host_hist": [140, 100], "timed": 50, "unfinished": 0, "run_ns": [100000, 100000, 5000000], "overlap_ns": 1250000,
    "run_hist": [216, 50]}]}]}
EOF
}

test_profile() {
    profile 0 a
    profile 1 b
    run --profile a b
    want_rc 0
    [ ! -s err ] || fail "something on stderr"
    # bucket 216 is 98304 to 102399 ns, its middle 100352: 1 MiB / 100.352 us = 10.45 GB/s, x 2 * 3 / 4
    want_in out '^AllReduce  *1 MiB  *bfloat16  *tp  *2 of 4  *RING  *SIMPLE  *8  *200  *100  *100.4 us  *100.4 us  *10.45  *15.67  *25 %$'
    want_in out '^2 files, 2 communicators, 200 collectives, 6 sends and receives; the profile took at most 0.2 %'
    run --json j --profile a b
    want_rc 0
    [ ! -s out ] || fail "something on stdout"
    want_in j '"busbw_gbytes": 15.67'
    want_in j '"median_us": 100.352'
    want_in j '"overlapped": 0.25'
    sed 's/"name": "tp"/"name": "d|p"/; s/"pid": 0/"pid": 7/' a >c
    run --profile a b c
    want_rc 0
    want_in out '^AllReduce .* tp  *2 of 4 '
    want_in out '^AllReduce .* d?p  *1 of 4 '
    sed 's/"AllReduce"/"AllGather"/; s/"rank": 0, "ranks": 4, "nodes": 2/"rank": 0, "ranks": 0, "nodes": 0/' a >old
    run --profile old
    want_rc 0 # NCCL before 2.27: the number of ranks is not known, nor what they gathered
    want_in out '^AllGather .* 1 of ?  .* 100.4 us  *-  *-  *25 %$'
    head -c 500 a >cut
    run --profile a cut
    want_rc 2
    want_in err 'mkinfo: cut: damaged: no JSON at line '
    want_in out '^AllReduce .* 1 of 4 .* 100 '
    run --profile cut; want_rc 2; [ ! -s out ] || fail "a table of nothing"
    run --profile none; want_rc 2; want_in err 'none: No such file'
    run --profile; want_rc 2; want_in err 'needs a file'
    sed 's/"calls": 100/"calls": 10/' a >lie
    run --profile lie; want_rc 2; want_in err 'lie: counts that contradict each other'
    timeout 20 "$bin/mkinfo" --profile a >/dev/full 2>err; rc=$?
    want_rc 1; want_in err 'standard output: No space left'
}

# explain_log: two ranks, with other programs' lines between, one cut
explain_log() {
    cat <<'END'
[0] starting
[0] mkernel: INFO HOOK fuse gemm n=4096 k=512 bf16: ORIGINAL reason=unknown-site
[0] mkernel: INFO HOOK fuse comm=0x5561 op=AllReduce n=65536 bf16 site=libtorch_cuda.so+0x12ab: PLAIN reason=learning
[1] mkernel: INFO HOOK fuse comm=0x7f12 op=AllReduce n=65536 bf16 site=libtorch_cuda.so+0x12ab: PLAIN reason=learning
[1] loss 0.25
[1] mkernel: INFO HOOK fuse comm=0x7f12 op=AllReduce n=65536 bf16 site=libtorch_cuda.so+0x12ab: OVERLAP proof=capture
[0] mkernel: INFO HOOK fuse comm=0x5561 op=AllReduce n=7 fp32 site=lib|x.so+0x1: NCCL reason=dtype
[0] mkernel: INFO HOOK fuse setup id=0xabc rank=0 of 2: ON from=40
[0] mkernel: INFO HOOK fuse timed comm=0x5561 from=65536 ours=36.4 nccl=24.4 gemm=0.0 together=36.4 us: eager=NCCL captured=NCCL
[0] mkernel: INFO HOOK fuse total reason=learning: 2
[0] mkernel: INFO HOOK fuse total PLAIN: 2
[0] mkernel: INFO HOOK fuse comm=0x5561 op=AllReduce n=65536 bf16 site=libt[1] loss 0.24
END
}

test_explain() {
    explain_log >log
    run --explain log
    want_rc 0
    [ ! -s err ] || fail "something on stderr"
    want_in out '^gemm  *N=4096 K=512  *bf16  *-  *ORIGINAL  *unknown-site  *1  *no collective was seen after'
    want_in out '^AllReduce  *65536  *bf16  *libtorch_cuda.so+0x12ab  *PLAIN  *learning  *2  *the first sighting'
    want_in out '^   *OVERLAP  *capture  *1  *overlaps with the GEMM'
    want_in out '^AllReduce  *7  *fp32  *lib?x.so+0x1  *NCCL  *dtype  *1  *only bf16 and fp16'
    want_in out '^12 lines, 9 of interception, 1 cut or mixed'
    want_in out '^set-up: on, 1 times'
    want_in out '^calls, from the counters at exit: PLAIN 2$'
    want_in out '^  2 learning: the first sighting'
    want_in out '^ *65536  *36.4  *24.4  *0.0  *36.4  *NCCL  *NCCL'
    run --json j --explain log
    want_rc 0
    [ ! -s out ] || fail "a table beside JSON"
    want_in j '"damaged": 1'
    want_in j '"proof": "capture"'
    if command -v python3 >/dev/null; then
        python3 -c 'import json
j = json.load(open("j"))
assert [s["call"] for s in j["sites"]] == ["gemm", "AllReduce", "AllReduce"], j
assert [d["decision"] for d in j["sites"][1]["decisions"]] == ["PLAIN", "OVERLAP"], j
assert j["sites"][1]["decisions"][0]["processes"] == 2 and j["reasons"] == {"learning": 2}, j
assert j["timed"][0]["from_bytes"] == 65536 and j["timed"][0]["nccl_us"] == 24.4 and j["timed"][0]["eager"] == "NCCL", j' || fail "JSON"
    fi
    echo nothing >none
    run --explain none; want_rc 2; want_in err 'none: no line of interception'; [ ! -s out ] || fail "a table of nothing"
    run --explain none log; want_rc 2; want_in out '^gemm '
    run --explain missing log; want_rc 2; want_in err 'missing: No such file'; want_in out '^gemm '
    run --explain .; want_rc 2; want_in err '\.: Is a directory'
    run --explain; want_rc 2; want_in err '--explain needs a file'
    run --explain --profile log; want_rc 2; want_in err 'two commands'
    : >empty
    run --explain empty; want_rc 2
    head -c 3000000 /dev/zero >zeros
    explain_log >>zeros
    run --explain zeros; want_rc 0; want_in out '^11 lines\|^12 lines' # the first line went with the zeros
    timeout 20 "$bin/mkinfo" --explain log >/dev/full 2>err; rc=$?
    want_rc 1; want_in err 'standard output: No space left'
}

test_$case
echo "ok $case"
