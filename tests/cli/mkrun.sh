#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# mkrun.sh BIN CASE: one test of mkrun with real processes. Every wait is bounded by ctest's timeout and by the
# `timeout` in front of the command.
set -u
bin=$1
case=$2
. "$(dirname "$0")/common.sh"
run() {
    timeout -k 5 50 "$bin/mkrun" "$@" >out 2>err </dev/null
    rc=$?
}

test_environment() {
    run --nodes 2 --ranks-per-node 3 -- sh -c \
        'echo "$MK_RANK $MK_NRANKS $MK_NODE $MK_LOCAL_RANK $MK_LOCAL_NRANKS $MK_IFNAME ${MK_ROOT%:*}"; echo "$MK_ROOT $MK_JOB" >&2'
    want_rc 0
    [ "$(sort out)" = "[0] 0 6 0 0 3 lo 127.0.0.1
[1] 1 6 0 1 3 lo 127.0.0.1
[2] 2 6 0 2 3 lo 127.0.0.1
[3] 3 6 1 0 3 lo 127.0.0.1
[4] 4 6 1 1 3 lo 127.0.0.1
[5] 5 6 1 2 3 lo 127.0.0.1" ] || fail "wrong environment"
    [ "$(cut -d' ' -f2- err | sort -u | wc -l)" = 1 ] || fail "root or job differ"
    first=$(cat err)
    run --ranks-per-node 2 -- sh -c 'echo "$MK_ROOT $MK_JOB" >&2'
    [ "$(cut -d' ' -f3 err | sort -u)" != "$(echo "$first" | cut -d' ' -f3 | sort -u)" ] || fail "MK_JOB is no secret"
    export MK_ROOT=10.0.0.1:77 MK_JOB=mine MK_IFNAME=eth9 MK_THREADS=5
    run --ranks-per-node 2 -- sh -c 'echo $MK_ROOT $MK_JOB $MK_IFNAME $MK_THREADS'
    [ "$(sort out)" = "[0] 10.0.0.1:77 mine eth9 5
[1] 10.0.0.1:77 mine eth9 5" ] || fail "what the user set was changed"
}

test_threads() {
    cores=$(nproc)
    run --ranks-per-node 1 -- sh -c 'echo $MK_THREADS'
    [ "$(cat out)" = "$cores" ] || fail "one rank does not get all cores"
    run --ranks-per-node 64 -- sh -c 'echo $MK_THREADS'
    expected=$((cores / 64)); [ $expected -gt 0 ] || expected=1
    [ "$(cut -d' ' -f2 out | sort -u)" = $expected ] || fail "not cores / ranks"
}

test_usage() {
    run; want_rc 2; want_in err 'no program given'
    run --nodes 0 -- true; want_rc 2; want_in err '--nodes 0 is not a number'
    run --nodes 1x -- true; want_rc 2; want_in err '--nodes 1x'
    run --nodes; want_rc 2; want_in err '--nodes needs a value'
    run --wrong -- true; want_rc 2; want_in err '--wrong is not an option'
    run -x -- true; want_rc 2; want_in err '-x is not an option'
    run --nodes 1024 --ranks-per-node 1024 -- true; want_rc 2; want_in err 'more than 1024'
    run --help; want_rc 0; want_in out 'examples:'
    run --version; want_rc 0; want_in out '^mkrun [0-9]'
    MK_NO_SUCH=1 run -- touch ran; want_rc 2; want_in err MK_NO_SUCH
    MK_CHUNK=12q run -- touch ran; want_rc 2; want_in err 'MK_CHUNK=12q'
    [ ! -e ran ] || fail "the program ran"
    [ "$(wc -l <err)" = 1 ] || fail "more than one line of complaint"
}

test_not_found() {
    run --nodes 3 -- ./no-such-program; want_rc 127
    want_in err 'no-such-program: program not found'
    [ "$(wc -l <err)" = 1 ] || fail "more than one line of complaint"
    echo text >plain; run -- ./plain; want_rc 126; want_in err 'plain: Permission denied'
}

test_status() {
    run -- sh -c 'exit 42'; want_rc 42
    run --nodes 3 -- sh -c '[ $MK_RANK != 1 ] || exit 9'; want_rc 9; want_in err 'rank 1 ended with status 9'
    run --nodes 2 -- sh -c '[ $MK_RANK = 0 ] || kill -SEGV $$'; want_rc 139; want_in err 'rank 1 was ended by signal 11'
    # the first failure counts, not the lowest rank
    run --nodes 3 -- sh -c 'case $MK_RANK in 2) exit 5;; *) sleep 1; exit 6;; esac'; want_rc 5
    run --quiet --nodes 2 -- sh -c 'exit 3'; want_rc 3
    [ ! -s err ] || fail "not quiet"
}

# a rank fails; one of the others reports and ends by itself, one ignores SIGTERM
test_failing() {
    export MK_TIMEOUT=0.1
    start=$(date +%s)
    run --nodes 3 -- sh -c 'case $MK_RANK in
        0) exit 7;;
        1) sleep 1; echo reported; exit 8;;
        2) trap "" TERM; echo $$ >pid; while :; do sleep 0.1; done;;
    esac'
    want_rc 7
    want_in out '^\[1\] reported$'
    want_in err 'rank 0 ended with status 7; the others have 5.1 s to report'
    want_in err '1 rank did not end, sending SIGTERM'
    want_in err '1 rank did not end, sending SIGKILL'
    gone "$(cat pid)"
    # the order of the steps is what counts; the lower bound shows that the grace was given
    [ $(($(date +%s) - start)) -ge 6 ] || fail "no time to report was given"
}

# forwarded NAME NUMBER: mkrun gets it, the ranks see it
forwarded() {
    rm -f ready.* got.*
    rc=-1
    "$bin/mkrun" --nodes 2 -- sh -c 'trap "echo '"$1"' >got.$MK_RANK; exit 3" '"$1"'
        echo up >ready.$MK_RANK; while :; do sleep 0.05; done' >out 2>err </dev/null &
    pid=$!
    appears ready.0; appears ready.1
    kill -s "$1" $pid
    wait $pid
    rc=$?
    want_rc 3
    for r in 0 1; do [ "$(cat got.$r)" = "$1" ] || fail "rank $r did not get $1"; done
}
test_signals() {
    # sh starts background jobs with INT and QUIT ignored, and mkrun leaves ignored signals alone
    for s in TERM HUP USR1 USR2; do forwarded $s; done
    rc=-1
    "$bin/mkrun" --nodes 2 -- sh -c 'echo up >up.$MK_RANK; sleep 30' >out 2>err </dev/null &
    pid=$!
    appears up.0; appears up.1
    kill -TERM $pid
    wait $pid
    rc=$?
    want_rc 143
}

test_interrupt() {
    # `timeout` sends it to mkrun and again to mkrun's group: that is one request, so no SIGTERM follows
    rc=-1
    timeout -k 20 -s INT 2 "$bin/mkrun" --nodes 2 -- sh -c 'trap "echo got int; exit 4" INT; while :; do sleep 0.05; done' \
        >out 2>err </dev/null
    [ "$(sort -u out)" = "[0] got int
[1] got int" ] || fail "SIGINT did not arrive"
    # the second of one request comes while the ranks report: they do not see it. A round in which this shell was
    # too slow (mkrun takes 300 ms for one request) tells nothing.
    rounds=0
    while :; do
        rm -f up.* said.*
        rc=-1
        env --default-signal=INT "$bin/mkrun" --nodes 2 -- sh -c \
            'trap "echo x >>said.$MK_RANK; sleep 0.4; exit 4" INT; echo up >up.$MK_RANK; while :; do sleep 0.05; done' \
            >out 2>err </dev/null &
        pid=$!
        appears up.0; appears up.1
        from=$(date +%s%N)
        kill -INT $pid; appears said.0; appears said.1; kill -INT $pid
        spent=$(($(date +%s%N) - from))
        wait $pid
        rc=$?
        [ $spent -ge 250000000 ] || break
        rounds=$((rounds + 1))
        [ $rounds -lt 40 ] || fail "no round was fast enough to tell"
    done
    want_rc 4
    for r in 0 1; do [ "$(wc -l <said.$r)" = 1 ] || fail "rank $r saw one request twice"; done
    # a rank that does not care: asked three times, it is killed
    rc=-1
    env --default-signal=INT "$bin/mkrun" --nodes 2 -- sh -c 'trap "" INT TERM; echo $$ >pid.$MK_RANK; while :; do sleep 0.05; done' \
        >out 2>err </dev/null &
    pid=$!
    appears pid.0; appears pid.1
    for i in 1 2 3; do kill -INT $pid; sleep 0.5; done
    wait $pid
    rc=$?
    want_rc 137
    gone "$(cat pid.0)"; gone "$(cat pid.1)"
}

test_grandchild() {
    # in the rank's own process group, holding its stdout
    run --nodes 2 -- sh -c '(trap "" TERM; while :; do sleep 0.1; done) & echo $! >pid.$MK_RANK; echo done'
    want_rc 0
    [ "$(sort out)" = "[0] done
[1] done" ] || fail "output"
    gone "$(cat pid.0)"; gone "$(cat pid.1)"
    want_in err 'left .* behind'
    # in a session of its own
    run -- sh -c 'setsid sh -c "echo \$\$ >far; exec sleep 300" & while [ ! -s far ]; do sleep 0.05; done'
    want_rc 0
    gone "$(cat far)"
    # of a rank that fails
    run --nodes 2 -- sh -c 'sleep 300 & echo $! >pid.$MK_RANK; exit 3'
    want_rc 3
    gone "$(cat pid.0)"; gone "$(cat pid.1)"
}

test_killed() {
    rc=-1
    "$bin/mkrun" --nodes 2 -- sh -c 'echo $$ >pid.$MK_RANK; exec sleep 300' >out 2>err </dev/null &
    pid=$!
    appears pid.0; appears pid.1
    kill -9 $pid
    wait $pid 2>/dev/null
    gone "$(cat pid.0)"; gone "$(cat pid.1)"
}

# 16 ranks, lines of 1 to 60,000 characters, on both streams at the same time, into the same file
test_lines() {
    cat >writer <<'END'
BEGIN {
    r = ENVIRON["MK_RANK"]
    for (i = 0; i < 120; i++) {
        n = i % 40 == 7 ? 60000 : (i * 37) % 900 + 1
        s = sprintf("%c", 97 + (r + i) % 26)
        while (length(s) < n) s = s s
        s = substr(s, 1, n)
        line = "o " i " " n " " s
        if (i % 3) print line; else print line >"/dev/stderr"
    }
    printf "last words of %d", r
}
END
    rc=-1
    timeout 50 "$bin/mkrun" --nodes 4 --ranks-per-node 4 -- awk -f "$dir/writer" >out 2>&1 </dev/null
    rc=$?
    cp /dev/null err
    want_rc 0
    cat >reader <<'END'
    function wrong(why) { print "wrong: " why ": " substr($0, 1, 80); bad = 1 }
    $2 == "last" { if ($0 != "[" $5 "] last words of " $5) wrong("last line"); last++; next }
    {
        r = substr($1, 2) + 0; i = $3; n = $4
        if ($1 != "[" r "]" || $2 != "o" || NF != 5) { wrong("form"); next }
        c = sprintf("%c", 97 + (r + i) % 26)
        if (length($5) != n) wrong("length")
        if ($5 !~ "^" c "*$") wrong("mixed")
        k = r " " (i % 3 == 0)
        if (k in seen && i <= seen[k]) wrong("order")
        seen[k] = i
        lines++
    }
    END { if (lines != 16 * 120 || last != 16) { print lines " lines, " last " last lines"; bad = 1 } exit bad }
END
    awk -f reader out >verdict || fail "$(head -5 verdict)"
}

# stdout and stderr stay apart; a single rank has no prefix; binary bytes and empty lines pass
test_streams() {
    run --nodes 2 -- sh -c 'echo out; echo err >&2; echo; printf "a\tb\001c\n"'
    [ "$(sort -u out)" = "$(printf '[0] \n[0] a\tb\001c\n[0] out\n[1] \n[1] a\tb\001c\n[1] out')" ] || fail "stdout"
    [ "$(sort err)" = "$(printf '[0] err\n[1] err')" ] || fail "stderr"
    run -- sh -c 'printf one; printf two >&2'
    [ "$(cat out)" = one ] && [ "$(cat err)" = two ] || fail "one rank"
    printf 'for rank 0' | timeout 20 "$bin/mkrun" --nodes 2 -- cat >out 2>err
    [ "$(cat out)" = '[0] for rank 0' ] || fail "stdin"
    # no newline within 5 MiB: cut, not lost
    run --nodes 2 -- sh -c '[ $MK_RANK = 1 ] || head -c 5242880 /dev/zero | tr "\0" x'
    want_rc 0
    [ "$(tr -dc x <out | wc -c)" = 5242880 ] || fail "bytes lost"
    [ "$(wc -l <out)" = 2 ] || fail "not cut once"
}

# On a terminal rank 0 has one too: its progress is shown at once and erased by the next line, whoever writes it.
test_terminal() {
    command -v script >/dev/null || { echo "skip: cli.mkrun.terminal: no script(1)"; exit 77; }
    script -qec true /dev/null >/dev/null 2>&1 </dev/null || { echo "skip: cli.mkrun.terminal: no pseudo-terminals here"; exit 77; }
    cat >program <<'END'
[ -t 2 ] && echo "terminal $MK_RANK"
[ -t 1 ] && echo "wrong: stdout of $MK_RANK"
if [ $MK_RANK = 1 ]; then
    while [ ! -e shown ]; do sleep 0.05; done
    echo from one; touch told
else
    printf '\r\033[Kstep 1' >&2; sleep 0.3; touch shown
    while [ ! -e told ]; do sleep 0.05; done
    printf '\r\033[Kstep 2' >&2; sleep 0.3
    printf '\r\033[K' >&2
    printf '\r\033[Kthe end\nplain\nno newline' >&2
fi
END
    timeout 30 script -qec "$bin/mkrun --nodes 2 -- sh program" /dev/null >out 2>err </dev/null
    rc=$?
    want_rc 0
    esc=$(printf '\033')
    tr -d '\r' <out | sed "s/$esc\[K/<erase>/g" >seen
    cp seen out
    [ "$(cat out)" = "[0] terminal 0
[0] step 1<erase>[1] from one
[0] step 2<erase>[0] the end
[0] plain
[0] no newline" ] || fail "not what a terminal should see"
    run --nodes 2 -- sh -c '[ -t 2 ] && echo terminal'
    want_not_in out terminal
}

test_reader_leaves() {
    rc=-1
    timeout 30 "$bin/mkrun" --nodes 2 -- sh -c 'while echo y; do :; done' 2>err </dev/null | head -1 >out
    [ "$(cut -c1 out)" = "[" ] || fail "no output"
    # a full disk is a failure
    timeout 30 "$bin/mkrun" --nodes 2 -- echo text >/dev/full 2>err </dev/null
    rc=$?
    want_rc 1
    want_in err 'standard output: No space left'
    # a slow reader holds the ranks up and loses nothing
    rc=-1
    timeout 40 "$bin/mkrun" --nodes 2 -- sh -c 'i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); echo $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done' \
        2>err </dev/null | { sleep 1; cat; } >out
    [ "$(wc -l <out)" = 6000 ] || fail "lines lost"
}

test_shm() {
    # a file of a killed rank, one of a rank's child, one of the job; and two of somebody else, which stay
    other=/dev/shm/999999999:0:0
    far=/dev/shm/mkernel-otherjob-$$
    echo x >$other; echo x >"$far"
    run --nodes 2 -- sh -c 'echo x >/dev/shm/$$:0:0; sh -c "echo x >/dev/shm/\$\$:1:0; echo \$\$ >child.$MK_RANK" &
        wait; echo x >/dev/shm/mkernel-$MK_JOB-x; echo $$ >pid.$MK_RANK; echo $MK_JOB >job; kill -9 $$'
    kept=$(cat $other "$far" | wc -l)
    rm -f $other "$far"
    want_rc 137
    [ "$kept" = 2 ] || fail "removed what belongs to others"
    for r in 0 1; do
        [ ! -e "/dev/shm/$(cat pid.$r):0:0" ] || fail "the file of rank $r is still there"
        rm -f "/dev/shm/$(cat child.$r):1:0" # its parent took it, so mkrun does not know it
    done
    [ ! -e "/dev/shm/mkernel-$(cat job)-x" ] || fail "the file of the job is still there"
}

test_$case
echo "ok $case"
