#!/bin/bash
# DAPL over librdmacm: dtest and dapltest, which compare the data themselves.
. "$(dirname "$0")/common.sh"
debian dapl2-utils libdapl2 iproute2

network 10.77.0.1
# DAPL finds its device by the address of an interface.
echo 'ofa-v2-soft u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 "10.77.0.1 0" ""' >dat.conf
export DAT_OVERRIDE=$work/dat.conf VERBS_SOFT=10.77.0.1

# pair PROGRAM OPTION...: a server, and a client with the same options.
pair() {
	local server program=$1
	shift
	start "server.log" soft 100 "$program" -P ofa-v2-soft "$@"
	server=$!
	until_true 30 grep -qE 'Server (is )?waiting|Waiting for client' server.log
	soft 90 "$program" -P ofa-v2-soft -h 10.77.0.1 "$@" && wait "$server" && cat server.log
}

# transactions OPTION...: dapltest's client. Its status says nothing about the test.
transactions() {
	soft 100 dapltest -T T -s 10.77.0.1 -D ofa-v2-soft "$@" >transactions.log 2>&1 || return 1
	cat transactions.log
	grep -q '^Total WQE' transactions.log && ! grep -qiE 'fail|error|invalid' transactions.log
}

check dtest pair dtest -b 65536 -D
stop_all
start dapltest-server.log soft 300 dapltest -T S -D ofa-v2-soft
until_true 30 grep -q 'Service Point Ready' dapltest-server.log
check dapltest.send transactions -t 2 -w 2 -i 50 -V client SR 4096 server SR 4096
check dapltest.write transactions -t 1 -w 2 -i 50 -V client RW 65536 server SR 256
check dapltest.read transactions -t 1 -w 2 -i 50 -V client RR 65536 server SR 256
check dapltest.quit soft 60 dapltest -T Q -s 10.77.0.1 -D ofa-v2-soft
