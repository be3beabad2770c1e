//! The front end for QEMU: a vfio-user server for each function.
