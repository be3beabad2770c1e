//! Which RDMA devices there are: netlink, then sysfs.
