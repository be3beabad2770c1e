//! [`own_device`]: creates soft devices for tests.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};

use verbs::Errno;

/// Creates a device on a loopback address that no other test uses. Devices of `auto` share the
/// address of the host instead.
pub(crate) fn own_device() -> verbs::Device {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        match verbs::soft::bind(IpAddr::from([127, number | 0x80, high, low])) {
            Ok(device) => return device,
            // Another test, still running, has the address.
            Err(error) => assert_eq!(error.errno, Errno::ADDRINUSE, "{error}"),
        }
    }
}
