//! The socket address structs that this crate's structs contain. Other kernel headers define them
//! (`linux/in.h`, `linux/in6.h`, `linux/socket.h`).

use crate::endian::{Be16, Be32};
use crate::macros::header;

header! {
    "linux/in.h linux/in6.h linux/socket.h";

    /// An IPv4 socket address.
    pub struct SockaddrIn = sockaddr_in {
        /// `AF_INET`.
        pub sin_family: u16,
        /// UDP or TCP port.
        pub sin_port: Be16,
        /// The IPv4 address. C wraps it in a `struct in_addr`.
        pub sin_addr: Be32,
        /// Padding, zero.
        pub __pad: [u8; 8],
    }

    /// An IPv6 socket address.
    pub struct SockaddrIn6 = sockaddr_in6 {
        /// `AF_INET6`.
        pub sin6_family: u16,
        /// UDP or TCP port.
        pub sin6_port: Be16,
        /// Flow information.
        pub sin6_flowinfo: Be32,
        /// The IPv6 address. C wraps it in a `struct in6_addr`.
        pub sin6_addr: [u8; 16],
        /// Interface index of a link-local address.
        pub sin6_scope_id: u32,
    }

    /// Storage for a socket address of any family: the bytes of the address family's struct, which
    /// starts with the family number.
    #[repr(align(8))]
    pub struct KernelSockaddrStorage = __kernel_sockaddr_storage {
        /// Address family.
        pub ss_family: u16,
        /// The rest of the address family's struct.
        pub __data: [u8; 126],
    }
}
