#!/bin/bash
# QEMU's live migration by RDMA: a guest of 256 MiB, half of it random bytes, on emulated processors.
. "$(dirname "$0")/common.sh"
debian qemu-system-x86

# A boot sector, which writes the letter A to the serial port and increments 64 KiB at 0x20000:
#   mov ax, 0x2000; mov ds, ax; mov dx, 0x3f8; mov al, 'A'
#   1: out dx, al; mov cx, 0xffff; 2: inc byte [bx]; inc bx; loop 2b; jmp 1b
printf '\xb8\x00\x20\x8e\xd8\xba\xf8\x03\xb0\x41\xee\xb9\xff\xff\xfe\x07\x43\xe2\xfb\xeb\xf5' >boot.img
truncate -s 510 boot.img && printf '\x55\xaa' >>boot.img
head -c 128M /dev/urandom >random

# guest NAME OPTION...: a QEMU with its monitor at NAME.in and NAME.log, and its serial port in NAME.serial.
guest() {
	local name=$1
	shift
	rm -f "$name.in" "$name.serial"
	mkfifo "$name.in"
	input=$name.in start "$name.log" soft 300 qemu-system-x86_64 -accel tcg -m 256 -nodefaults \
		-display none -drive file=boot.img,format=raw,snapshot=on -serial "file:$name.serial" \
		-monitor stdio "$@"
}

letters() { [ "$(tr -cd A <"$1.serial" | wc -c)" -gt "$2" ]; }

# ended: a migration that was started has completed or failed.
ended() {
	echo 'info migrate' >&7
	sleep 0.5
	grep -qE 'Migration status: (completed|failed)' source.log
}

# migrate PORT [CAPABILITY]
migrate() {
	# Both ends stay open, so that a monitor's input does not end.
	guest source -device loader,file=random,addr=0x1000000,force-raw=on
	exec 7<>source.in
	guest destination -incoming "rdma:127.0.0.1:$1"
	exec 8<>destination.in
	until_true 60 letters source 10 || { echo 'the guest does not run'; return 1; }
	until_true 60 grep -q '(qemu)' destination.log || return 1
	if [ -n "${2:-}" ]; then
		echo "migrate_set_capability $2 on" | tee /dev/fd/7 >&8
	fi
	echo "migrate -d rdma:127.0.0.1:$1" >&7
	until_true 200 ended || echo 'the migration does not end'
	cat source.log destination.log
	grep -q 'Migration status: completed' source.log || return 1
	until_true 60 letters destination 10 || { echo 'the guest does not run at its destination'; return 1; }
	echo 'pmemsave 0x1000000 0x8000000 arrived' >&8
	echo 'info status' >&8
	until_true 60 grep -q 'VM status: running' destination.log && cmp random arrived
}

for capability in '' rdma-pin-all; do
	rm -f arrived
	check "migrate${capability:+.$capability}" migrate 18701 "$capability"
	stop_all
done
rm -f random arrived
