//! ibv_devices, ibv_devinfo, ibv_rc_pingpong with rdma-core's flags and output.
