#!/bin/busybox sh
# First process of the guest: loads modules, mounts the host's root read-only under a tmpfs, and hands over to
# `xtask guest-init`, which the host put into the share "job". Its failures are visible on the console.
bb=/bin/busybox
fail() {
    echo "xtask-init: $*" >/dev/console
    $bb poweroff -f
}
$bb mount -t proc proc /proc || fail "no /proc"
$bb mount -t sysfs sys /sys || fail "no /sys"
$bb mount -t devtmpfs dev /dev || fail "no /dev"
for module in /modules/*.ko; do
    # Some need a processor feature that is missing. A module that the guest needs is missed below, by name.
    $bb insmod "$module" 2>/dev/null
done
options=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
$bb mount -t 9p -o $options hostroot /host || fail "cannot mount the host's root over 9p"
lower=/host
case " $($bb cat /proc/cmdline) " in
*" xtask.debian "*)
    # Programs of this architecture, over the host's.
    $bb mount -t 9p -o $options debian /debian || fail "cannot mount Debian's programs over 9p"
    lower=/debian:/host
    ;;
esac
$bb mount -t tmpfs -o mode=755 tmpfs /rw || fail "no tmpfs"
$bb mkdir /rw/upper /rw/work
$bb mount -t overlay -o lowerdir=$lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "no overlay"
$bb mkdir -p /new/proc /new/sys /new/dev /new/run
for dir in proc sys dev; do
    $bb mount --move /$dir /new/$dir || fail "cannot move /$dir"
done
$bb mount -t tmpfs -o mode=755 tmpfs /new/run || fail "no /run"
$bb mkdir /new/run/vm
$bb mount -t 9p -o $options job /new/run/vm || fail "cannot mount the job over 9p"
$bb mkdir -p /new/dev/pts /new/dev/shm
$bb mount -t devpts -o mode=620,gid=5,ptmxmode=666 devpts /new/dev/pts || fail "no /dev/pts"
$bb mount -t tmpfs -o mode=1777 tmpfs /new/dev/shm || fail "no /dev/shm"
# Optional: a kernel without them still runs every test.
$bb mount -t cgroup2 cgroup2 /new/sys/fs/cgroup 2>/dev/null
$bb mount -t debugfs debugfs /new/sys/kernel/debug 2>/dev/null
$bb ln -s /proc/self/fd /new/dev/fd
$bb ln -s /proc/self/fd/0 /new/dev/stdin
$bb ln -s /proc/self/fd/1 /new/dev/stdout
$bb ln -s /proc/self/fd/2 /new/dev/stderr
$bb hostname guest
exec $bb switch_root /new /run/vm/xtask guest-init
