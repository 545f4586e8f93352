#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright mKernel authors
# kernel.sh CACHE: puts Debian's kernel (vmlinuz) and a small initrd with the modules for soft RoCE into CACHE, once;
# later calls find them there. Exit 77, the reason in the last line: not possible on this machine.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$1
modules="virtio_pci virtio_net 9pnet_virtio 9p dummy veth crc32c_generic crc32_generic ib_uverbs rdma_ucm rdma_rxe"

skip() {
    echo "$1"
    exit 77
}

[ "$(. /etc/os-release 2>/dev/null && echo "$ID")" = debian ] ||
    skip "the machine is made from Debian's kernel package, this is not Debian"
[ "$(uname -m)" = x86_64 ] || skip "written for x86_64, this is $(uname -m)"
for tool in qemu-system-x86_64 cpio busybox apt-cache dpkg-deb rdma ip; do
    command -v $tool >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null ||
        skip "no $tool here (ci/setup vm)"
done
PATH=$PATH:/usr/sbin:/sbin
for tool in modprobe depmod; do
    command -v $tool >/dev/null || skip "no $tool here (ci/setup vm)"
done

mkdir -p "$cache"
exec 9>"$cache/lock" # two tests at once: one makes it, the other waits
flock -w 300 9 || { echo "somebody else has been making $cache for 300 s"; exit 1; }
if [ -s "$cache/initrd" ] && [ "$cache/initrd" -nt "$here/init" ] && [ "$cache/initrd" -nt "$here/kernel.sh" ]; then
    exit 0
fi
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -s "$cache/vmlinuz" ]; then
    package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" {print $2; exit}')
    [ -n "$package" ] || skip "apt knows no linux-image-amd64 (apt-get update?)"
    (cd "$work" && timeout 240 apt-get -q download "$package") || skip "apt could not download $package"
    mkdir "$work/root"
    dpkg-deb -x "$work"/*.deb "$work/root"
    version=$(ls "$work/root/lib/modules")
    depmod -b "$work/root" "$version"
    mkdir "$work/modules"
    i=100
    for module in $modules; do
        modprobe -d "$work/root" -S "$version" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" "$work/modules/$i.${file##*/}" # in the order to load them
        i=$((i + 1))
    done
    [ -n "$(ls "$work/modules")" ] || { echo "no modules in $package"; exit 1; }
    rm -rf "$cache/modules"
    mv "$work/modules" "$cache/modules"
    mv "$work/root/boot/vmlinuz-$version" "$cache/vmlinuz"
fi

tree=$work/tree
mkdir -p "$tree"/{bin,dev,proc,sys,host,out}
cp "$(command -v busybox)" "$tree/bin/busybox"
cp -r "$cache/modules" "$tree/modules"
cp "$here/init" "$tree/init"
chmod 755 "$tree/init"
(cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
mv "$work/initrd" "$cache/initrd"
