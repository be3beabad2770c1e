#!/bin/bash
# qperf over librdmacm (-cm1): bandwidth, latency and its checks of atomics.
#
# qperf's server tells its client a port before it listens there (src/rdma.c), so that a client may
# be rejected. Only a run that ended this way is repeated, with a server of its own.
. "$(dirname "$0")/common.sh"
debian qperf

measure() {
	local try port
	for try in 1 2 3 4 5 6 7 8; do
		port=$((18600 + try))
		start server.log soft 60 qperf -lp $port
		until_true 20 listens $port || return 1
		soft 40 qperf 127.0.0.1 -lp $port -cm1 -t 1 -vvc "$1" && return
		grep -q 'unexpected event from RDMA CM: Event rejected' "$work/$1.log" || return 1
		stop_all
		echo "rejected before the server listened: run $try"
		# Only the message of the next run counts.
		sed -i 's/unexpected event/an unexpected event/' "$work/$1.log"
	done
	return 1
}

tests="rc_bw rc_lat rc_bi_bw rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat rc_rdma_read_bw
	rc_rdma_read_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add"
[ -z "${PROGRAMS_FEW:-}" ] || tests="rc_lat rc_rdma_read_bw ver_rc_fetch_add"
for test in $tests; do
	check "$test" measure "$test"
	stop_all
done
