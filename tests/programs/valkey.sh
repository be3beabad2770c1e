#!/bin/bash
# Valkey over RDMA: its own test (rdma-test), which reads back what it wrote, and its command line.
. "$(dirname "$0")/common.sh"
debian make gcc libc6-dev libibverbs-dev librdmacm-dev pkgconf
# Valkey 8.1 has no RDMA in valkey-cli and valkey-benchmark.
if debian_source valkey 9.1.2 v/valkey/valkey_9.1.2.orig.tar.gz \
	8e8557da7426a51b4e0fb514a65ef6241dc7c85cb408243af389070abf379cec; then
	source=valkey-9.1.2
elif debian_source valkey 8.1.1 v/valkey/valkey_8.1.1+dfsg1.orig.tar.xz \
	d9bbd82eecb82f359e649a0007ad3dc1b47cc15afa626348ca86b73c4ae2c7ee; then
	source=valkey-8.1.1
else
	skip_all "the source of Valkey 9.1.2 or 8.1.1 cannot be had: see $work/source.log"
fi
version "${source/-/ }"

valkey=$work/$source/src
if [ ! -e "$source/complete" ]; then
	{ timeout -k 10 1200 make -j"$(nproc)" -C "$valkey" BUILD_RDMA=yes MALLOC=libc OPTIMIZATION=-O1 valkey-server valkey-cli valkey-benchmark &&
		timeout -k 10 60 make -C "$source/tests/rdma" && touch "$source/complete"; } >build.log 2>&1 ||
		{ fail build 'make fails' build.log && exit; }
fi

port=18901
rm -rf data && mkdir data
start server.log soft 300 "$valkey/valkey-server" --port 0 --protected-mode no --save '' --dir "$work/data" \
	--rdma-bind 127.0.0.1 --rdma-port $port
until_true 60 soft_listens $port || { fail server 'it does not listen' server.log && exit; }

# It writes and compares values of 1 KiB, and has the server fork.
for threads in 1 4; do
	check "rdma-test.$threads" soft 100 "$work/$source/tests/rdma/rdma-test" -h 127.0.0.1 -p $port -t $threads -m 100 -M 500
done
if [ $source = valkey-8.1.1 ]; then
	skip cli 'Valkey 8.1 has no RDMA in valkey-cli'
	skip benchmark 'Valkey 8.1 has no RDMA in valkey-benchmark'
	exit
fi

cli() { soft 60 "$valkey/valkey-cli" --rdma -h 127.0.0.1 -p $port "$@"; }

# value BYTES: stores a random value by one connection, and reads it back by another.
value() {
	head -c "$1" /dev/urandom >value
	[ "$(cli -x SET value <value)" = OK ] && cli --raw -D '' GET value >read && cmp value read
}
check cli.100 value 100
check cli.1000000 value 1000000

# load CLIENTS: valkey-benchmark, and afterwards a value that it stored.
load() {
	soft 100 "$valkey/valkey-benchmark" --rdma -h 127.0.0.1 -p $port -c "$1" -n 4000 -d 4096 -t set,get -r 1 -q &&
		[ "$(cli STRLEN key:000000000000)" = 4096 ]
}
check benchmark.1 load 1
check benchmark.8 load 8
