#!/bin/bash
# An iSER target, tgt, and two initiators: libiscsi's programs and QEMU's block driver.
. "$(dirname "$0")/common.sh"
debian tgt libiscsi-bin qemu-utils qemu-block-extra

target=iqn.2026-01.test:disk
# tgt's iSER admits an initiator only by its address and its name. The second name is QEMU's.
names="iqn.2026-01.test:initiator iqn.2008-11.org.linux-kvm"
admin() { tgtadm -C 7 --lld iser "$@"; }

head -c 64M /dev/urandom >disk
start target.log soft 120 tgtd -f -C 7 --iser port=13260 --iscsi portal=127.0.0.1:13261
server=$!
until_true 30 admin --mode system --op show
{
	admin --mode target --op new --tid 1 --targetname $target &&
		admin --mode logicalunit --op new --tid 1 --lun 1 --backing-store "$work/disk" &&
		admin --mode target --op bind --tid 1 --initiator-address ALL
	for name in $names; do admin --mode target --op bind --tid 1 --initiator-name "$name"; done
} >admin.log 2>&1 || fail target 'tgtadm fails' admin.log

# iscsi PROGRAM OPTION...: one of libiscsi's programs. They select iSER by the end of the address.
iscsi() { soft 30 "$@" "iscsi://127.0.0.1:13260/$target/1?iser"; }

# libiscsi's iSER takes requests of up to 512 KiB.
disk=iser://127.0.0.1:13260/$target/1
read_disk() { rm -f arrived && soft 60 qemu-img dd -f raw -O raw bs=256k if=$disk of=arrived && cmp disk arrived; }

write_disk() {
	local number
	for number in $(seq 0 255); do
		echo "write -P $number $((number * 262144)) 262144"
	done >commands
	soft 60 qemu-io -f raw $disk <commands || return 1
	for number in $(seq 0 255); do
		head -c 262144 /dev/zero | tr '\0' "\\$(printf %o "$number")"
	done | cmp - disk
}

check capacity iscsi iscsi-readcapacity16 -i ${names% *}
check read read_disk
check write write_disk
check perf iscsi iscsi-perf --initiator-name=${names% *} -b 16 -m 32 -t 2
# tgtd ignores SIGTERM.
kill -9 "$(pgrep -P $server)"
