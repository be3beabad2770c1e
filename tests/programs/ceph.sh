#!/bin/bash
# Ceph's messenger by RDMA: a monitor, an OSD in memory, and objects that are put and read again.
. "$(dirname "$0")/common.sh"
debian ceph-mon ceph-osd ceph-common

uuid() { cat /proc/sys/kernel/random/uuid; }

rm -rf cluster && mkdir -p cluster/mon cluster/osd && cd cluster || exit 2
cat >ceph.conf <<-END
	[global]
	fsid = $(uuid)
	ms_type = async+rdma
	ms_async_rdma_device_name = soft0
	ms_async_rdma_receive_queue_len = 1024
	ms_bind_msgr2 = false
	ms_async_op_threads = 1
	mon_host = v1:127.0.0.1:18789
	mon_data = $PWD/mon
	osd_data = $PWD/osd
	osd_objectstore = memstore
	memstore_device_bytes = 268435456
	osd_crush_chooseleaf_type = 0
	osd_pool_default_size = 1
	mon_allow_pool_size_one = true
	auth_cluster_required = none
	auth_service_required = none
	auth_client_required = none
	keyring = $PWD/keyring
	run_dir = $PWD
	admin_socket =
	log_file = $PWD/\$name.log
	pid_file = $PWD/\$name.pid
END
export CEPH_CONF=$PWD/ceph.conf
{
	ceph-authtool keyring --create-keyring --gen-key -n mon. --cap mon 'allow *'
	ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
	monmaptool --create --fsid "$(ceph-conf --lookup fsid)" --addv a '[v1:127.0.0.1:18789]' monmap
	soft 60 ceph-mon --mkfs -i a --monmap monmap --keyring keyring
} >setup.log 2>&1 || fail setup 'no monitor' setup.log

# The monitor and the OSD are started here: `check` waits for its command's children.
start mon.log soft 300 ceph-mon -f -i a
until_true 60 soft 20 ceph osd dump || fail monitor 'it does not reply' mon.log
osd=$(uuid)
{ soft 60 ceph osd new "$osd" && soft 60 ceph-osd -i 0 --mkfs --osd-uuid "$osd"; } >osd.setup.log 2>&1 ||
	fail osd 'it cannot be added' osd.setup.log
start osd.log soft 300 ceph-osd -f -i 0
head -c 8M /dev/urandom >object

objects() {
	soft 60 ceph osd pool create numbers 8 &&
		soft 60 rados -p numbers put one object &&
		soft 60 rados -p numbers get one arrived &&
		cmp object arrived
}
check objects objects
check bench soft 60 rados -p numbers bench 2 write -t 4 -b 65536
