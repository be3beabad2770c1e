#!/bin/bash
# NIXL over the UCX of its wheel, which has libibverbs and libmlx5 under names of its own: two
# agents, each a process.
. "$(dirname "$0")/common.sh"
devices
# Its requirements include torch, of which it needs nothing without a GPU.
pypi --no-deps nixl-cu12==1.5.1 numpy==1.26.4
export UCX_NET_DEVICES=soft0:1 UCX_TLS=rc_v,ud_v,self
check agents soft 100 "$python" "$here/own/nixl_agents.py"
