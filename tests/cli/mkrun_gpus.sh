#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkrun_gpus.sh BIN CASE: mkrun --gpus-shared, with stand-ins for the CUDA driver (in $STAND_IN) and for the control
# program of MPS; mknic is the real one. However mkrun ends, nothing is left.
set -u
bin=$1
case=$2
. "$(dirname "$0")/common.sh"
mkdir tmp mps
# the daemon of the stand-in: a process that lives until it is told to quit
cat >mps/nvidia-cuda-mps-control <<'EOF'
#!/bin/sh
log=LOG
if [ "${1-}" = -d ]; then
    echo "start $CUDA_MPS_PIPE_DIRECTORY ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none}" >>$log
    [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || exit 1
    setsid sleep 100 >/dev/null 2>&1 </dev/null &
    echo $! >$log.pid
else
    read -r line
    echo "$line" >>$log
    kill "$(cat $log.pid)"
fi
EOF
sed -i "s|LOG|$dir/mps.log|" mps/nvidia-cuda-mps-control
chmod +x mps/nvidia-cuda-mps-control
export TMPDIR="$dir/tmp" LD_LIBRARY_PATH="$STAND_IN"
[ $case = no_mps ] || export PATH="$dir/mps:$PATH"
[ $case = no_gpu ] && unset LD_LIBRARY_PATH
# what a rank does: shows what it got, notes the process behind the socket
rank='echo "$MK_NET|$MK_NIC|$MK_SHARED_GPU|$CUDA_MPS_PIPE_DIRECTORY|$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    [ -S "$MK_NIC" ] || exit 9
    tr "\0" " " </proc/$(pgrep -f -- "--socket $MK_NIC" | head -1)/environ >nic.env
    pgrep -f -- "--socket $MK_NIC" | head -1 >nic.pid; echo $$ >rank.$MK_RANK'
export MK_NET=loop
nothing_left() {
    gone "$(cat nic.pid)"
    gone "$(cat mps.log.pid)"
    i=0
    while [ -n "$(ls tmp)" ]; do
        i=$((i + 1)); [ $i -lt 100 ] || fail "left in the temporary directory: $(ls tmp)"
        sleep 0.1
    done
    [ "$(tail -1 mps.log)" = "quit -t 5" ] || fail "MPS was not told to quit: $(cat mps.log)"
}
run() { timeout -k 5 50 "$bin/mkrun" "$@" >out 2>err </dev/null; rc=$?; }

test_done() {
    run --gpus-shared --nodes 2 -- sh -c "$rank"
    want_rc 0
    sed 's/mkernel-[A-Za-z0-9]*/X/g; s/^\[[01]\] //' out | sort -u >got
    [ "$(cat got)" = "loop|$dir/tmp/X/nic|1|$dir/tmp/X/mps|50.000" ] || fail "environment: $(cat got)"
    grep -q "CUDA_MPS_PIPE_DIRECTORY=$dir/tmp" nic.env || fail "mknic is not under MPS"
    grep -q CUDA_MPS_ACTIVE_THREAD_PERCENTAGE nic.env && fail "mknic is limited"
    nothing_left
    CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20 run --gpus-shared --ranks-per-node 3 -- sh -c "$rank"
    want_rc 0
    [ "$(grep -c '|20$' out)" = 3 ] || fail "the user's share was changed"
    grep -q CUDA_MPS_ACTIVE_THREAD_PERCENTAGE nic.env && fail "mknic is limited by the user's share"
    run --gpus-shared --ranks-per-node 3 -- sh -c "$rank"
    [ "$(grep -c '|33.333$' out)" = 3 ] || fail "not a third each"
    CUDA_VISIBLE_DEVICES=0,1 run --gpus-shared --ranks-per-node 3 -- sh -c "$rank"
    [ "$(grep -c '|50.000$' out)" = 3 ] || fail "two GPUs: two ranks share the first"
    CUDA_VISIBLE_DEVICES=0,1 run --gpus-shared --ranks-per-node 2 -- sh -c "$rank"
    [ "$(grep -c '|100.000$' out)" = 2 ] || fail "not a GPU each"
    nothing_left
}
test_failed() {
    run --gpus-shared --nodes 2 -- sh -c "$rank; exit 5"
    want_rc 5
    nothing_left
}
test_interrupt() {
    MK_TIMEOUT=1 timeout 50 "$bin/mkrun" --gpus-shared --nodes 2 -- sh -c "$rank; exec sleep 60" >out 2>err </dev/null &
    appears rank.0; appears rank.1
    kill -INT "$(pgrep -P $! mkrun)"
    wait $!; rc=$?
    want_rc 130
    nothing_left
}
test_killed() {
    "$bin/mkrun" --gpus-shared --nodes 2 -- sh -c "$rank; exec sleep 60" >out 2>err </dev/null &
    appears rank.0; appears rank.1
    kill -9 $!
    nothing_left
    gone "$(cat rank.0)"
}
test_no_mps() {
    run --gpus-shared --nodes 2 -- touch ran
    want_rc 1
    want_in err 'nvidia-cuda-mps-control: program not found'
    [ ! -e ran ] || fail "the program ran"
    [ -z "$(ls tmp)" ] || fail "left: $(ls tmp)"
}
test_no_gpu() {
    ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && { echo "skip: cli.mkrun.gpus_no_gpu: there is a CUDA driver"; exit 77; }
    run --gpus-shared --nodes 2 -- touch ran
    want_rc 1
    want_in err 'no CUDA driver'
    want_in err 'mknic did not come up'
    [ ! -e ran ] || fail "the program ran"
    gone "$(cat mps.log.pid)"
    [ -z "$(ls tmp)" ] || fail "left: $(ls tmp)"
}
# The kernels of all ranks must be on the GPUs at once; the ranks learn how many blocks they have.
test_census() {
    [ -n "${NO_KERNELS-}" ] && { echo "skip: cli.mkrun.gpus_census: no nvcc"; exit 77; }
    run --gpus-shared --nodes 2 --ranks-per-node 3 -- sh -c "$rank; echo \"blocks \$MK_BLOCKS\""
    want_rc 0 # 132 SMs on each of two GPUs
    [ "$(grep -c 'blocks 44$' out)" = 6 ] || fail "not 44 blocks each: $(cat out)"
    MK_BLOCKS=20 run --gpus-shared --nodes 2 -- sh -c "$rank; echo \"blocks \$MK_BLOCKS\""
    [ "$(grep -c 'blocks 20$' out)" = 2 ] || fail "the user's blocks were changed: $(cat out)"
    FAKE_RESIDENT=19 MK_BLOCKS=20 run --gpus-shared --nodes 2 -- sh -c "$rank"
    want_rc 0
    want_in err '38 of the ranks. 40 blocks were resident at once'
    FAKE_RESIDENT=41 run --gpus-shared --nodes 2 --ranks-per-node 3 -- sh -c "$rank; echo \"blocks \$MK_BLOCKS\""
    want_rc 0
    want_in err '246 of the ranks. 264 blocks were resident at once; each rank gets 41$'
    [ "$(grep -c 'blocks 41$' out)" = 6 ] || fail "not 41 blocks each: $(cat out)"
    # of a part, too, some may not be there: another round with fewer
    FAKE_FIT=40 run --gpus-shared --nodes 2 --ranks-per-node 3 -- sh -c "$rank; echo \"blocks \$MK_BLOCKS\""
    want_rc 0
    want_in err '252 of the ranks. 264 blocks were resident at once; each rank gets 40$'
    [ "$(grep -c 'blocks 40$' out)" = 6 ] || fail "not 40 blocks each: $(cat out)"
    FAKE_RESIDENT=9 MK_BLOCKS=20 run --gpus-shared --nodes 2 -- touch ran
    want_rc 1
    want_in err 'do not fit on the GPUs together: of the 20 blocks of rank 0, 9 were resident'
    [ ! -e ran ] || fail "the program ran"
    FAKE_LAUNCH_ERROR=2 run --gpus-shared --nodes 2 -- touch ran
    want_rc 1
    want_in err 'the census of rank [01] failed'
    [ ! -e ran ] || fail "the program ran"
    nothing_left
}
test_nic_dies() {
    run --gpus-shared --nodes 1 -- sh -c "$rank; kill -9 \$(cat nic.pid); sleep 1"
    want_rc 0
    want_in err 'mknic was ended by signal 9'
    nothing_left
}
test_$case
echo "ok $case"
