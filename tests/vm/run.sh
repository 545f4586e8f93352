#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# run.sh [options] CACHE SCRIPT [ARG...]: boots a virtual machine with soft RoCE, runs SCRIPT in it, exits with its
# status. The machine sees this host's files in place, read-only, so that it runs what was built here; what is written
# under $OUT (a folder below CACHE) comes back. CACHE keeps kernel and initrd.
#   -n NAME     name of the run: of its test and its folder (default: soft_roce)
#   -s SUFFIX   its folder is NAME.SUFFIX
#   -t SECONDS  the whole run ends within that (default 240)
#   -m N        number of this machine (default 1): its address is 10.9.0.N
#   -l SOCKET | -c SOCKET   joined with another machine by a network: this one listens, connects; RoCE runs over it
#                           (default: over a dummy interface)
# Needs Debian's kernel, QEMU and a few small tools (ci/setup vm); where they are missing: a skip. Emulated processors
# (-accel tcg) on purpose: /dev/kvm of a rented machine may exist and not boot a stock kernel. Without the kernel's own
# tests of its cryptography, which nothing here is about: emulated, they have stood still while it booted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=soft_roce suffix='' limit=240 machine=1 net=()
while getopts n:s:t:m:l:c: opt; do
    case $opt in
    n) name=$OPTARG ;;
    s) suffix=.$OPTARG ;;
    t) limit=$OPTARG ;;
    m) machine=$OPTARG ;;
    l) net=(-netdev "stream,id=n,server=on,addr.type=unix,addr.path=$OPTARG") ;;
    c) net=(-netdev "stream,id=n,server=off,addr.type=unix,addr.path=$OPTARG") ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -ge 2 ] || { sed -n '4,16s/^# \?//p' "$0" >&2; exit 2; }
mkdir -p "$1"
cache=$(cd "$1" && pwd)
shift

rc=0
"$here/kernel.sh" "$cache" >"$cache/$name$suffix.setup" 2>&1 || rc=$?
if [ $rc -eq 77 ]; then
    echo "skip: vm.$name: $(tail -n 1 "$cache/$name$suffix.setup")"
    exit 77
elif [ $rc -ne 0 ]; then
    cat "$cache/$name$suffix.setup"
    echo "vm.$name: making kernel and initrd failed"
    exit 1
fi

out=$cache/$name$suffix
rm -rf "$out"
mkdir -p "$out"
printf 'machine=%q\nout=%q\ncwd=%q\ncommand=%q\n' "$machine" "$out" "$PWD" "$(printf '%q ' "$@")" >"$out/job"
[ ${#net[@]} -eq 0 ] ||
    net+=(-device "virtio-net-pci,netdev=n,mac=52:54:00:00:09:0$machine,romfile=")
begin=$SECONDS
# ends with this script, however it ends
setpriv --pdeathsig TERM timeout -k 5 "$limit" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -m 1G -smp 2 \
    -nodefaults -no-user-config -display none -serial stdio -no-reboot \
    -kernel "$cache/vmlinuz" -initrd "$cache/initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off tsc=reliable no_timer_check cryptomgr.notests" \
    -fsdev "local,id=host,path=/,security_model=none,multidevs=remap,readonly=on" \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=out,path=$out,security_model=none,multidevs=remap" \
    -device virtio-9p-pci,fsdev=out,mount_tag=out \
    "${net[@]}" </dev/null >"$out/console" 2>&1 || rc=$?
status=$(cat "$out/status" 2>/dev/null || echo none)
[ ! -f "$out/output" ] || cat "$out/output"
case $status in
0 | 77) ;;
none)
    echo "vm.$name: the machine ended without a status (QEMU: $rc, after $((SECONDS - begin)) s of $limit); its console:"
    tail -n 60 "$out/console" | tr -d '\r'
    exit 1
    ;;
*)
    echo "vm.$name: $* ended with status $status in the machine; the last lines of its console:"
    tail -n 20 "$out/console" | tr -d '\r'
    ;;
esac
echo "vm.$name: status $status after $((SECONDS - begin)) s"
exit "$status"
