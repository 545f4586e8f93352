#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# hook_preload.sh OBJECT FOLDER MKINFO: the product's object in LD_PRELOAD of programs that have nothing to do with CUDA: their
# output and exit codes are as without it, with MK_FUSE unset, off and on; nothing but lookups by name is patched. And of
# one that has: its calls are counted by the lines at exit, without MK_FUSE there is no line.
set -u
object=$1 folder=$2 mkinfo=$3 failed=0
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
[ -r "$object" ] || { echo "$object is not there"; exit 1; }
unset MK_FUSE MK_LOG LD_PRELOAD

# same NAME COMMAND...: with and without
same() {
    name=$1
    shift
    "$@" >"$out/want" 2>"$out/want2" </dev/null
    want=$?
    for fuse in "" off on graph; do
        env ${fuse:+MK_FUSE=$fuse} LD_PRELOAD="$object" "$@" >"$out/got" 2>"$out/got2" </dev/null
        got=$?
        if [ $got != $want ] || ! cmp -s "$out/want" "$out/got" || ! cmp -s "$out/want2" "$out/got2"; then
            echo "$name, MK_FUSE=$fuse: exit code $got, wanted $want; its output:"
            cat "$out/got" "$out/got2"
            failed=1
        fi
    done
}
same true true
same false false
same echo echo some words
same "exit code" sh -c 'exit 7'
same "a signal" sh -c 'kill -TERM $$'
same "a pipe" sh -c 'echo one two | wc -w'
same "many children" sh -c 'for i in 1 2 3 4 5; do (exit $i); echo $?; done; (sleep 0.1; echo late) & wait'
same "a missing program" sh -c 'no-such-program-here 2>/dev/null'
if command -v python3 >/dev/null && python3 -c 1 2>/dev/null; then
    same python python3 -c 1
    same "python, ctypes" python3 -c 'import ctypes; print(ctypes.CDLL("libc.so.6").abs(-7)); raise SystemExit(3)'
    same "python, fork" python3 -c 'import os
for i in range(3):
    p = os.fork()
    if not p: os._exit(i + 4)
    print(os.waitpid(p, 0)[1])'
else
    echo "note: no python3: not tried with it"
fi
if command -v mpirun >/dev/null && command -v mpicc >/dev/null; then
    cat >"$out/mpi.c" <<'END'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, ranks, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!rank)
        printf("%d ranks, sum %d\n", ranks, sum);
    MPI_Finalize();
    return sum;
}
END
    mpicc -o "$out/mpi" "$out/mpi.c" || failed=1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
    # What mpirun says of a rank's exit code differs in every run, so on stdout alone.
    same MPI sh -c 'timeout 60 mpirun -n 3 "$0" 2>/dev/null' "$out/mpi"
    grep -q '^3 ranks, sum 3$' "$out/want" || { echo "the MPI program said:"; cat "$out/want"; failed=1; }
else
    echo "note: no mpirun: not tried with it"
fi
same "fork, threads, dlopen" "$folder/hook_life" alone "$folder"

# A program without CUDA: only dlsym and dlvsym, and of whom that is.
env MK_FUSE=on MK_LOG=info LD_PRELOAD="$object" sh -c 'exit 0' 2>"$out/log"
grep -q 'interception by LD_PRELOAD' "$out/log" || { echo "no line at the start:"; cat "$out/log"; failed=1; }
grep -q 'cuBLAS loaded\|NCCL loaded' "$out/log" && { echo "libraries where none are:"; cat "$out/log"; failed=1; }
for fuse in "" off; do
    env ${fuse:+MK_FUSE=$fuse} MK_LOG=info LD_PRELOAD="$object" sh -c 'exit 0' 2>"$out/log"
    grep -q HOOK "$out/log" && { echo "MK_FUSE=$fuse, yet a line:"; cat "$out/log"; failed=1; }
done
env MK_FUSE=maybe LD_PRELOAD="$object" sh -c 'exit 0' 2>"$out/log"
grep -q 'MK_FUSE=maybe is not off, graph or on' "$out/log" || { echo "a wrong MK_FUSE is not named"; failed=1; }

# One with the libraries (stand-ins).
env MK_FUSE=on MK_LOG=info LD_PRELOAD="$object" "$folder/hook_calls" 2>"$out/log"
for line in 'ncclAllReduce: 3 calls' 'cublasLtMatmul: 2 calls' ' patched in '; do
    grep -q "HOOK $line\|HOOK .*$line" "$out/log" || { echo "no line '$line':"; cat "$out/log"; failed=1; }
done
# What became of them, and why: once a call site, and counted; mkinfo reads it.
env MK_FUSE=on MK_LOG=info LD_PRELOAD="$object" "$folder/hook_calls" loop 2>"$out/log"
why=not-ready # nobody tells which it is
grep -q 'every call is passed on, this build has no kernels' "$out/log" && why=no-kernels
[ "$(grep -c 'HOOK fuse comm=0x[0-9a-f]* op=AllReduce n=1 other site=program+0x[0-9a-f]*: NCCL reason='"$why"'$' "$out/log")" -eq 1 ] ||
    { echo "not one line of the call site:"; cat "$out/log"; failed=1; }
for line in 'fuse total NCCL: 4' "fuse total reason=$why: 4"; do
    grep -q "HOOK $line\$" "$out/log" || { echo "no line '$line':"; cat "$out/log"; failed=1; }
done
"$mkinfo" --explain "$out/log" >"$out/table" || { cat "$out/log" "$out/table"; failed=1; }
grep -q '^AllReduce  *1  *other  *program+0x[0-9a-f]*  *NCCL  *'"$why " "$out/table" || { cat "$out/table"; failed=1; }
env LD_PRELOAD="$object" "$folder/hook_calls" slots || { echo "slots were changed though MK_FUSE is unset"; failed=1; }
env MK_FUSE=off LD_PRELOAD="$object" "$folder/hook_calls" slots || { echo "slots were changed by MK_FUSE=off"; failed=1; }
env MK_FUSE=on LD_PRELOAD="$object" "$folder/hook_calls" slots && { echo "MK_FUSE=on changed no slot"; failed=1; }
# As a plugin, after somebody looked NCCL's functions up by name: that is said.
env MK_FUSE=on MK_LOG=info "$folder/hook_faces" "$object" "$folder" 2>"$out/log" || { cat "$out/log"; failed=1; }
grep -q 'NCCL is loaded, but no object imports its functions' "$out/log" ||
    { echo "no line about pointers that are not reached:"; cat "$out/log"; failed=1; }
exit $failed
