#!/bin/bash
# libfabric's own tests (fabtests): the functional and the short ones of its runfabtests.sh, over
# reliable connections (`verbs`) and over reliable datagrams on top of them (`verbs;ofi_rxm`).
. "$(dirname "$0")/common.sh"
debian autoconf automake libtool make gcc libc6-dev libibverbs-dev librdmacm-dev iproute2
version libfabric 2.1.0
debian_source libfabric 2.1.0 libf/libfabric/libfabric_2.1.0.orig.tar.xz \
	1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df ||
	skip_all "the source of libfabric 2.1.0 cannot be had: see $work/source.log"

# build FOLDER OPTION...
build() (
	cd "$1" && shift && ./autogen.sh && ./configure --prefix="$work/installed" CFLAGS=-O1 "$@" &&
		make -j"$(nproc)" && make install
)
export -f build
export work
if [ ! -e installed/complete ]; then
	{ timeout -k 10 900 bash -c 'build libfabric-2.1.0 --disable-static --enable-only --enable-verbs --enable-rxm' &&
		timeout -k 10 900 bash -c 'build libfabric-2.1.0/fabtests --with-libfabric="$work/installed"' &&
		touch installed/complete; } >build.log 2>&1 || { fail build 'make fails' build.log && exit; }
fi

# libfabric skips loopback interfaces. Each end has an address, as on two machines.
network 10.78.0.1 10.78.0.2
# Endpoints of ofi_rxm have queues for so many peers.
export FI_UNIVERSE_SIZE=4

# Some tests exchange addresses over TCP first.
ready() { soft_listens 9228 || listens 3000 || ! kill -0 "$1"; }

# pair PROVIDER PROGRAM OPTION...: a server and a client with the same options. Its status is that of
# the end that fails.
pair() {
	local server provider=$1 command=$work/installed/bin/$2 status
	shift 2
	VERBS_SOFT=10.78.0.1 start server.log soft 100 "$command" "$@" -p "$provider" -s 10.78.0.1
	server=$!
	until_true 60 ready $server
	VERBS_SOFT=10.78.0.2 soft 90 "$command" "$@" -p "$provider" -s 10.78.0.2 10.78.0.1
	status=$?
	[ $status = 0 ] || stop_all
	wait "$server" || status=$?
	children=
	echo "-- the server, and the status $status" && cat server.log
	return $status
}

# one PROVIDER TEST: a line of runfabtests.sh. A program ends with 61 (FI_ENODATA) or 38 (FI_ENOSYS)
# if its provider lacks an operation.
one() {
	local name=${1/*;/}.$(echo "${2#fi_}" | sed 's/ -*/./g') log
	log=$work/$name.log
	pair "$1" $2 >"$log" 2>&1 </dev/null
	case $? in
	0) ok "$name" ;;
	38 | 61) skip "$name" 'the provider does not have this' ;;
	124 | 137) fail "$name" 'did not end in time' "$log" ;;
	*) fail "$name" 'an end fails' "$log" ;;
	esac
}

eval "$(sed -n '/^\(functional\|short\)_tests=(/,/^)/p' libfabric-2.1.0/fabtests/scripts/runfabtests.sh)"
skip verbs.msg_sockets \
	'libfabric 2.1 calls rdma_resolve_addr twice for its endpoint, which the kernel rejects as well (EINVAL)'
for provider in verbs 'verbs;ofi_rxm'; do
	# libfabric's own list of tests that a provider does not support.
	list=${provider/*;/}
	grep -vE '^(#|[[:space:]]*$)' "libfabric-2.1.0/fabtests/test_configs/$list/$list.exclude" >"$list.exclude"
	for test in "${functional_tests[@]}" "${short_tests[@]}"; do
		if [ "$test" != fi_msg_sockets ] && ! echo "$test" | grep -qE -f "$list.exclude"; then
			one "$provider" "$test"
		fi
	done
done
