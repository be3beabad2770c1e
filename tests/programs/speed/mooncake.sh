#!/bin/bash
# Mooncake's transfer_engine_bench: the device beside Mooncake's own TCP.
. "$(dirname "$0")/turns.sh"
devices
pypi mooncake-transfer-engine-non-cuda==0.3.13.post1
bench=$(echo "$work"/venv/lib/python3*/site-packages/mooncake/transfer_engine_bench)
forget

listening() { sed -nE 's/.*listening on (127[0-9.:]+).*/\1/p' target.log | grep .; }

# engines PROTOCOL OPERATION BLOCK: an initiator and a target; prints gigabytes per second.
engines() {
	local both="-metadata_server=P2PHANDSHAKE -local_server_name=127.0.0.1 -protocol=$1 -device_name=soft0 -buffer_size=268435456"
	start target.log soft 60 "$bench" -mode=target $both
	until_true 20 listening
	soft 60 "$bench" $both -segment_id="$(listening)" -operation="$2" -block_size="$3" -duration=4 -threads=2 -batch_size=16 >&2 || { stop_all && return 1; }
	stop_all
	sed -nE 's/.*throughput ([0-9.]+) GB.*/\1/p' "$work/$row.$side.log"
}
for _ in $(seq "$runs"); do
	for operation in read write; do
		turn $operation rdma engines rdma $operation 65536
		turn $operation tcp engines tcp $operation 65536
		turn $operation again engines tcp $operation 65536
	done
done
for operation in read write; do
	ratio $operation rdma tcp '>= 1'
	ratio $operation again tcp
done
