#!/bin/bash
# Gloo's ibverbs transport: three ranks add vectors.
. "$(dirname "$0")/common.sh"
debian libgloo-dev libibverbs-dev g++
g++ -O1 -o allreduce "$here/own/gloo_allreduce.cc" -lgloo -libverbs >build.log 2>&1 || fail build 'g++ fails' build.log

ranks() {
	local status=0 pids= rank
	rm -rf store && mkdir store
	for rank in 0 1 2; do
		start "rank$rank.log" soft 120 ./allreduce $rank 3 store
		pids="$pids $!"
	done
	for rank in $pids; do wait "$rank" || status=1; done
	cat rank?.log
	return $status
}
check allreduce.3 ranks
