#!/bin/bash
# fio's RDMA engine over librdmacm: a client's job and a server's.
. "$(dirname "$0")/common.sh"
debian fio

# With threads: job processes of their own would outlive a server that is ended.
job="--thread --ioengine=rdma --bs=64k --size=4m"

# transfer VERB PORT [SERVER_OPTION...]: a client and a server, which both must succeed. fio connects
# where --rw is write, whatever the verb.
transfer() {
	local verb=$1 port=$2
	shift 2
	# It has a receive for each of the client's 64 sends: fio does not retry a send without a receive.
	start "server-$verb.log" soft 120 fio --name=server $job --rw=read --port="$port" --iodepth=64 "$@"
	local server=$!
	until_true 60 grep -q 'waiting for connection' "server-$verb.log" || return 1
	soft 100 fio --name=client $job --hostname=127.0.0.1 --port="$port" --verb="$verb" \
		--rw=write --iodepth=4 --verify=crc32c --do_verify=0 || return 1
	wait "$server" && cat "server-$verb.log"
}

# The server of an RDMA write or read takes no part in it, and fio writes to random buffers: only
# errors and byte counts are checked. Receives carry fio's own checksums.
check write transfer write 18511
check read transfer read 18512
check send transfer send 18513 --verify=crc32c --verify_fatal=1
