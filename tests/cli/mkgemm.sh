#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkgemm.sh BIN CASE: one test of mkgemm as a user calls it, alone and under mkrun.
set -u
bin=$1
case=$2
. "$(dirname "$0")/common.sh"
export MK_NET=loop MK_TIMEOUT=10
run() {
    timeout -k 5 50 "$bin/mkgemm" "$@" >out 2>err </dev/null
    rc=$?
}
# ranks D G ARGS: under mkrun
ranks() {
    d=$1 g=$2
    shift 2
    timeout -k 5 50 "$bin/mkrun" --nodes "$d" --ranks-per-node "$g" -- "$bin/mkgemm" "$@" >out 2>err </dev/null
    rc=$?
}
# One complaint, and nothing left of an output.
one_complaint() {
    [ "$(grep -c 'mkgemm: ' err)" = 1 ] || fail "not one complaint"
    want_in err "$1"
    [ ! -e C.npy ] || fail "C.npy was written"
    [ -z "$(find . -name '*.tmp-*')" ] || fail "an unfinished file is left"
}
make() { "$bin/mkgemm" --make "$@" --a A.npy --b B.npy || fail "--make $*"; }
field() { tr -d ' \n' <r.json | sed -n "s/.*\"$1\":\([^,}]*\)[,}].*/\1/p"; }

test_alone() {
    for layout in tn nn nt; do
        for dtype in fp32 bf16; do
            make 33,70,129 --layout $layout --dtype $dtype --seed 3
            run --a A.npy --b B.npy --out C.npy --layout $layout --verify --repeat 1
            want_rc 0
            want_in out "C\[33,70\] = sum over K = 129, $dtype, layout $layout"
            want_in out 'relative error'
            [ ! -s err ] || fail "something on stderr, which is no terminal"
        done
    done
    # another dtype than that of the files
    make 20,30,40
    run --a A.npy --b B.npy --out C.npy --dtype bf16 --verify --repeat 0
    want_rc 0; want_in out 'K = 40, bf16'
    [ "$(wc -c <C.npy)" = $((128 + 20 * 30 * 2)) ] || fail "size of a bf16 product"
    want_in C.npy "'<V2'"
}

test_shapes() {
    for shape in 1,1,1 1,97,3 127,1,130 5,7,0 3,4,2 0,5,6 6,0,3; do
        make $shape
        run --a A.npy --b B.npy --out C.npy --verify --repeat 1
        want_rc 0
        cp C.npy one.npy
        ranks 2 2 --a A.npy --b B.npy --out C.npy --verify --repeat 1
        want_rc 0
        [ "$(wc -c <C.npy)" = "$(wc -c <one.npy)" ] || fail "sizes differ for $shape"
    done
}

test_ranks() {
    for dtype in fp32 bf16; do
        for layout in tn nn nt; do
            make 65,130,201 --layout $layout --dtype $dtype --seed 9
            for job in '1 3' '3 1' '2 2'; do
                # shellcheck disable=SC2086
                ranks $job --a A.npy --b B.npy --out C.npy --layout $layout --verify --repeat 1 --json r.json
                want_rc 0
                want_in out 'ranks hold the same bits'
                [ "$(field ok)$(field bitwise_equal)" = truetrue ] || fail "JSON"
            done
        done
    done
}

test_json() {
    make 48,64,80
    ranks 2 2 --a A.npy --b B.npy --verify --repeat 9 --json r.json
    want_rc 0
    for pair in ok=true nodes=2 ranks=4 'transport="loop"' 'dtype="fp32"' bitwise_equal=true M=48 N=64 K=80; do
        [ "$(field "${pair%%=*}")" = "${pair#*=}" ] || fail "field ${pair%%=*} is $(field "${pair%%=*}")"
    done
    for name in rel_error t_compute t_comm t_sequential t_fused bound t_fused_min t_fused_max; do
        case $(field $name) in [0-9]*) ;; *) fail "field $name is $(field $name)" ;; esac
    done
    awk "BEGIN { exit !($(field t_fused_min) <= $(field t_fused) && $(field t_fused) <= $(field t_fused_max)) }" ||
        fail "median outside of its range"
    # not asked for: null
    run --a A.npy --b B.npy --repeat 0 --json r.json
    want_rc 0
    [ "$(field rel_error)$(field t_fused)" = nullnull ] || fail "figures out of nowhere"
}

test_timeline() {
    make 200,300,100
    ranks 2 2 --a A.npy --b B.npy --repeat 1 --timeline t.svg
    want_rc 0
    for r in 0 1 2 3; do want_in t.svg ">rank $r<"; done
    want_in t.svg 'of the communication time is hidden behind compute'
    want_in t.svg '<title>tile 0: '
    ranks 2 2 --a A.npy --b B.npy --repeat 0 --timeline t.json
    want_rc 0
    want_in t.json '"traceEvents": \['
    want_in t.json '"cat": "send"'
    for r in 0 1 2 3; do want_in t.json "\"pid\": $r, \"tid\": 0"; done
}

test_make() {
    make 7,5,9 --seed 4
    cp A.npy A1.npy; cp B.npy B1.npy
    make 7,5,9 --seed 4
    cmp A.npy A1.npy && cmp B.npy B1.npy || fail "not the same again"
    make 7,5,9 --seed 5
    cmp -s A.npy A1.npy && fail "the seed has no effect"
    [ "$(od -An -tx1 -N8 A.npy | tr -d ' ')" = 934e554d50590100 ] || fail "magic"
    want_in A.npy "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 9), }"
    # known bytes: the same matrices on every machine
    [ "$(tail -c +129 A1.npy | cksum | cut -d' ' -f1)" = 2771913229 ] || fail "other numbers: $(tail -c +129 A1.npy | cksum)"
    rm A.npy B.npy
    ranks 2 1 --make 3,3,3 --a A.npy --b B.npy
    want_rc 0
    [ -s A.npy ] && [ -s B.npy ] || fail "nothing made under mkrun"
    run --make 3,3,3 --a /dev/full --b B.npy; want_rc 1; want_in err '/dev/full: No space left'
    run --make 1000000000000,1,1000000000000 --a X.npy --b Y.npy; want_rc 1; want_in err 'more than a file can hold'; [ ! -e X.npy ] || fail "X.npy is left"
    for shape in 1000000000,1,1000000000 1,1000000000,1000000000; do
        run --make $shape --a X.npy --b Y.npy; want_rc 1; want_in err '[XY].npy: disk full: 4[0-9]*.0 MB needed'
        one_complaint 'disk full'
        [ ! -e X.npy ] && [ ! -e Y.npy ] || fail "a matrix was begun that has no room"
    done
}

test_usage() {
    make 4,4,4
    run --a A.npy --b B.npy --out C.npy --dtype fp32 --device gpu
    want_rc 1
    want_in err '--device gpu: there is no fp32 on the GPU'
    [ ! -e C.npy ] || fail "C was written"
    try() {
        rc=0
        run "$@"
        want_rc 2
        one_complaint 'mkgemm: '
    }
    try
    try --a A.npy --out C.npy;                          want_in err '--b is missing'
    try --a A.npy --b B.npy;                            want_in err '--out is missing'
    try --a A.npy --b B.npy --out C.npy extra;          want_in err 'extra is one argument too many'
    try --a A.npy --b B.npy --out C.npy --layout tt;    want_in err '--layout tt is not'
    try --a A.npy --b B.npy --out C.npy --dtype fp64;   want_in err '--dtype fp64'
    try --a A.npy --b B.npy --out C.npy --device tpu;   want_in err '--device tpu is not auto, cpu or gpu'
    try --a A.npy --b B.npy --out C.npy --repeat -1;    want_in err '--repeat -1'
    try --a A.npy --b B.npy --out;                      want_in err '--out needs a value'
    try --a A.npy --b B.npy --out C.npy --wrong;        want_in err '--wrong is not an option'
    try --make 1,2 --a A.npy --b B.npy;                 want_in err '--make 1,2 is not M,N,K'
    try --make 1,2,3,4 --a A.npy --b B.npy
    try --make 1,-2,3 --a A.npy --b B.npy
    try --a A.npy --b B.npy --out C.npy --json ./A.npy; want_in err 'same file'
    try --a A.npy --b B.npy --out C.npy --json C.npy;   want_in err 'same file'
    ln -s B.npy link.svg
    try --a A.npy --b B.npy --verify --timeline link.svg; want_in err 'same file'
    for name in t.bmp t .svg/t svg t.svg.gz t.SVG; do
        try --a A.npy --b B.npy --out C.npy --timeline $name
        want_in err "--timeline $name is neither FILE.svg nor FILE.json"
    done
    try --make 1,2,3 --a A.npy --b A.npy;               want_in err 'same file'
    MK_CHUNKS=1 try --a A.npy --b B.npy --out C.npy;    want_in err 'unknown setting MK_CHUNKS'
    MK_CHUNK=x try --a A.npy --b B.npy --out C.npy;     want_in err 'MK_CHUNK=x'
    ranks 2 2 --a A.npy --b B.npy --out C.npy --layout tt
    want_rc 2; one_complaint '--layout tt'
    run --help; want_rc 0; want_in out 'examples:'
    run --version; want_rc 0; want_in out '^mkgemm [0-9]'
}

test_bad_files() {
    make 8,6,10
    cp A.npy good.npy
    bad() { # TEXT: alone and with ranks: exit 2 and one line that names file and place
        run --a A.npy --b B.npy --out C.npy; want_rc 2; one_complaint "$1"
        ranks 2 2 --a A.npy --b B.npy --out C.npy; want_rc 2; one_complaint "$1"
    }
    head -c 300 good.npy >A.npy;                    bad 'A.npy: byte 128: 8 x 10 elements of fp32 are 320 bytes, but 172 follow'
    head -c 50 good.npy >A.npy;                     bad 'A.npy: byte 8: a header of 118 bytes'
    echo text >A.npy;                               bad 'A.npy: byte 0: too short'
    : >A.npy;                                       bad 'A.npy: byte 0: too short'
    sed "s/'<f4'/'<f8'/" good.npy >A.npy;           bad "A.npy: byte 128: elements of type '<f8'"
    sed "s/'<f4'/'>f4'/" good.npy >A.npy;           bad "elements of type '>f4'"
    sed 's/(8, 10)/(8,10 /' good.npy >A.npy;        bad 'a whole number'
    rm A.npy;                                       bad 'A.npy: No such file'
    mkdir A.npy;                                    bad 'A.npy: is not a regular file'
    rmdir A.npy; cp good.npy A.npy
    "$bin/mkgemm" --make 8,6,11 --a X.npy --b B.npy || fail make
    bad 'A.npy is 8 x 10 and B.npy is 6 x 11: with --layout tn the columns of A and the columns of B are K, but 10 and 11 differ'
}

# A mistake of one rank alone: that rank tells, all end with the same status.
test_one_rank() {
    make 8,6,10
    "$bin/mkgemm" --make 8,6,12 --a X.npy --b Y.npy || fail make
    cat >other <<END
[ \$MK_RANK = 1 ] && exec "$bin/mkgemm" --a \$1 --b \$2 --out C.npy
exec "$bin/mkgemm" --a A.npy --b B.npy --out C.npy
END
    timeout 50 "$bin/mkrun" --nodes 3 -- sh other missing.npy B.npy >out 2>err </dev/null
    rc=$?
    want_rc 2; one_complaint '^\[1\] mkgemm: missing.npy: No such file'
    timeout 50 "$bin/mkrun" --nodes 3 -- sh other X.npy Y.npy >out 2>err </dev/null
    rc=$?
    want_rc 2; one_complaint '^\[1\] mkgemm: rank 1 was given other matrices'
}

test_outputs() {
    make 8,6,10
    run --a A.npy --b B.npy --out no/such/C.npy; want_rc 1; one_complaint 'no/such/C.npy: No such file'
    ranks 2 2 --a A.npy --b B.npy --out no/such/C.npy; want_rc 1; one_complaint '^\[0\] mkgemm: no/such/C.npy'
    run --a A.npy --b B.npy --out /dev/full --repeat 0; want_rc 1; one_complaint '/dev/full: No space left'
    ranks 2 2 --a A.npy --b B.npy --out /dev/full --repeat 0; want_rc 1; one_complaint '/dev/full: No space left'
    [ -c /dev/full ] || fail "/dev/full was replaced"
    run --a A.npy --b B.npy --out . ; want_rc 1; one_complaint 'Is a directory'
    run --a A.npy --b B.npy --json no/such.json; want_rc 1; one_complaint 'no/such.json'
    run --a A.npy --b B.npy --timeline no/such.svg; want_rc 1; one_complaint 'no/such.svg'
    timeout 20 "$bin/mkgemm" --a A.npy --b B.npy --verify --repeat 0 >/dev/full 2>err </dev/null
    rc=$?
    want_rc 1; want_in err 'standard output: No space left'
    # in place: C takes the place of A
    run --a A.npy --b B.npy --out A.npy --verify --repeat 0; want_rc 0
    want_in A.npy '(8, 6)'
}

test_terminal() {
    command -v script >/dev/null || { echo "skip: cli.mkgemm.terminal: no script(1)"; exit 77; }
    script -qec true /dev/null >/dev/null 2>&1 </dev/null || { echo "skip: cli.mkgemm.terminal: no pseudo-terminals here"; exit 77; }
    make 64,64,64
    timeout 30 script -qec "$bin/mkgemm --a A.npy --b B.npy --out C.npy" /dev/null >out 2>err </dev/null
    rc=$?
    want_rc 0
    want_in out 'measuring: 3 of 9'
    run --a A.npy --b B.npy --out C.npy
    want_not_in err measuring
}

test_$case
echo "ok $case"
