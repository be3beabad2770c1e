#!/bin/bash
# Mooncake's transfer engine: two processes, which find their devices themselves.
. "$(dirname "$0")/common.sh"
devices
pypi mooncake-transfer-engine-non-cuda==0.3.13.post1
check engines soft 120 "$python" "$here/own/mooncake_engines.py"
# Without a device it takes TCP and says so in its log alone.
if grep -q 'Installing TCP transport' engines.log; then
	fail engines.rdma 'it takes TCP' engines.log
elif grep -q 'RDMA device: soft0' engines.log; then
	ok engines.rdma
else
	fail engines.rdma 'its log does not name soft0' engines.log
fi
