//! Conformance cases, interop and the guest side of testing.
