#!/bin/bash
# The rate of messages of 8 bytes with 32 under way: perftest's and UCX's over our device, beside UCX's
# own shared memory.
. "$(dirname "$0")/turns.sh"
devices
debian ucx-utils perftest
forget

# pair OPTION...: a server and a client of ucx_perftest; prints messages per second.
pair() {
	start server.log soft 60 ucx_perftest -p 13411 -f "$@"
	until_true 20 listens 13411
	soft 60 ucx_perftest -p 13411 -f "$@" 127.0.0.1 | tee client.log | awk 'NF >= 6 { rate = $NF } END { print rate }'
	stop_all
}
ucx() (
	export UCX_TLS=$1
	shift
	pair -s 8 -O 32 -w 10000 -n "$@"
)
ours() (
	export UCX_NET_DEVICES=soft0:1
	ucx rc_v,self "$@"
)
# perftest TOOL: a server and a client; prints messages per second.
perftest() {
	start server.log soft 60 "$1" -d soft0 -x 0 -s 8 -t 32 -n 200000 -F -p 18531
	until_true 20 listens 18531
	soft 60 "$1" -d soft0 -x 0 -s 8 -t 32 -n 200000 -F -p 18531 localhost | tee client.log | awk '$1 == 8 { print $5 * 1e6 }'
	stop_all
}
for _ in $(seq "$runs"); do
	turn rate write perftest ib_write_bw
	turn rate sm ucx sm,self 1000000 -t tag_bw
	turn rate send perftest ib_send_bw
	turn rate again ucx sm,self 1000000 -t tag_bw
	turn rate tag ours 200000 -t tag_bw
	turn rate put ours 200000 -t ucp_put_bw
	turn rate sm-put ucx sm,self 1000000 -t ucp_put_bw
done
ratio rate write sm '>= 0.3'
ratio rate send sm '>= 0.3'
ratio rate tag sm
ratio rate put sm-put
ratio rate again sm
