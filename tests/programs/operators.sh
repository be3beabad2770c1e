#!/bin/bash
# Programs that show devices to an operator: they read /sys/class/infiniband. Counters follow traffic.
. "$(dirname "$0")/common.sh"
devices
debian infiniband-diags hwloc-nox prometheus-node-exporter ibverbs-utils curl

ibstat_shows() { soft 20 ibstat soft0 1 && soft 20 ibstat soft0 1 | grep -q 'State: Active'; }
ibstatus_shows() { soft 20 ibstatus soft0 | tee /dev/stderr | grep -q '4: ACTIVE'; }
lstopo_shows() { soft 20 lstopo-no-graphics | tee /dev/stderr | grep -q 'OpenFabrics "soft0"'; }

# In one namespace, whose counters its processes share.
cat >traffic.sh <<-'END'
	prometheus-node-exporter --collector.disable-defaults --collector.infiniband --web.listen-address=127.0.0.1:19100 &
	metric() { curl -s http://127.0.0.1:19100/metrics | sed -n "s/^node_infiniband_$1{.*} //p"; }
	for try in $(seq 300); do metric state_id | grep -qx 4 && break; sleep 0.1; done
	ibv_rc_pingpong -d soft0 -g 0 -n 100 >server.log & server=$!
	for try in $(seq 300); do grep -q 'local address' server.log && break; sleep 0.1; done
	ibv_rc_pingpong -d soft0 -g 0 -n 100 127.0.0.1 && wait $server
	for try in $(seq 100); do
		packets=$(metric port_packets_transmitted_total)
		[ "${packets%.*}" -ge 400 ] && break
		sleep 0.1
	done
	metric port_packets_transmitted_total
	metric port_data_transmitted_bytes_total
	kill %1
	[ "${packets%.*}" -ge 400 ]
END
check ibstat ibstat_shows
check ibstatus ibstatus_shows
check lstopo lstopo_shows
check exporter soft 90 bash traffic.sh
