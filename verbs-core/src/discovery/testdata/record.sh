# Makes three more rxe devices beside the guest's rxe0, one of them after another was removed, and runs the program.
set -e
ip link set veth1 up
ip link add veth2 type veth peer name veth3
ip link set veth2 up
ip link set veth3 up
rdma link add zz type rxe netdev veth1
rdma link add tmp type rxe netdev veth2
rdma link add mm type rxe netdev veth3
rdma link delete tmp
rdma link add aa type rxe netdev veth2
exec "$1"
