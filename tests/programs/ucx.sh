#!/bin/bash
# UCX's ucx_perftest: messages, streams, one-sided accesses and threads, polled and with events.
. "$(dirname "$0")/common.sh"
devices
debian ucx-utils
export UCX_NET_DEVICES=soft0:1

# pair TRANSPORT OPTION...: a server and a client. The server ends with its client.
pair() {
	export UCX_TLS="${1}_v,self"
	shift
	start server.log soft 60 ucx_perftest -p 13401 "$@"
	until_true 20 listens 13401
	soft 60 ucx_perftest -p 13401 "$@" 127.0.0.1
}
for transport in rc ud; do
	for test in 'tag_bw -s 100000' 'stream_bw -s 65536' 'ucp_am_bw -s 10000 -T 4' 'ucp_put_bw -s 65536' 'ucp_get -s 65536' ucp_fadd ucp_cswap \
		'tag_lat -E sleep' 'ucp_am_lat -E sleep'; do
		check "$transport.$(echo "$test" | tr -d ' ')" pair $transport -n 200 -t $test
		stop_all
	done
done
