//! Checksums of receives. If a queue pair has `wq_signature`, each receive has an extra first
//! segment with a checksum.
//!
//! ```text
//! checksum = !(segment with checksum 0 ^ elements ^ queue pair number ^ index)     byte by byte
//! ```
//! libmlx5 is the only provider that writes these checksums. The model accepts all forms that
//! libmlx5 writes:
//! - All receives posted in one call carry the index of the first of them.
//! - The sum covers as many elements as the program passed. If one of these had a length of 0, the
//!   sum also covers the terminator, because libmlx5 does not write that element.
//!
//! # References
//! rdma-core `providers/mlx5/qp.c`, `set_sig_seg` and `mlx5_post_recv`

use crate::layout::wqe::{data, recv_signature};
use crate::qp::rq::TERMINATOR;

/// Size of the checksum segment, in bytes.
pub(super) const SIZE: usize = recv_signature::SIZE;

/// Checks the checksums of receives that are fetched together.
#[derive(Debug)]
pub(super) struct Checksums {
    /// The sum of the bytes in the queue pair number.
    number: u8,
    /// The sums of all indexes that the previous receive may have carried.
    last: Vec<u8>,
}

impl Checksums {
    pub(super) fn new(qpn: u32) -> Self {
        Self { number: sum(&qpn.to_be_bytes()), last: Vec::new() }
    }

    /// Checks the checksum of the receive with this index.
    ///
    /// # Errors
    /// Returns a description of the violation.
    pub(super) fn check(&mut self, index: u16, receive: &[u8]) -> Result<(), &'static str> {
        let last = std::mem::take(&mut self.last);
        let (segment, elements) = receive.split_at_checked(SIZE).ok_or("no room for a checksum")?;
        if recv_signature::TABLE.reserved(segment).is_some() {
            return Err("reserved bits beside the checksum");
        }
        let mut total = !(sum(segment) ^ self.number);
        let mut terminator = None;
        for element in elements.chunks_exact(data::SIZE) {
            if data::BYTE_COUNT.get32(element) == 0 && data::LKEY.get32(element) == TERMINATOR {
                terminator = Some(sum(element));
                break;
            }
            total ^= sum(element);
        }
        let own = sum(&index.to_be_bytes());
        let carried = [Some(total), terminator.map(|end| total ^ end)].into_iter().flatten();
        self.last = carried.filter(|carried| *carried == own || last.contains(carried)).collect();
        if self.last.is_empty() { Err("the checksum is wrong") } else { Ok(()) }
    }
}

/// Returns the exclusive OR of all bytes.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QPN: u32 = 0x12_3456;

    /// Returns a 64-byte receive as libmlx5 writes it in a call whose first receive has index
    /// `first`, with elements of these lengths.
    fn signed(first: u16, lengths: &[u32]) -> [u8; 64] {
        let mut receive = [0; 64];
        let mut written = 1;
        for length in lengths.iter().filter(|length| **length > 0) {
            let element = &mut receive[written * 16..][..16];
            data::BYTE_COUNT.set(element, *length);
            data::LKEY.set(element, 0x1742u32);
            data::ADDRESS.set(element, 0x7f00_1234_0000u64);
            written += 1;
        }
        if written < 4 {
            data::LKEY.set(&mut receive[written * 16..], TERMINATOR);
        }
        let covered = &receive[..(lengths.len() + 1) * 16];
        let checksum = !(sum(covered) ^ sum(&QPN.to_be_bytes()) ^ sum(&first.to_be_bytes()));
        recv_signature::SIGNATURE.set(&mut receive, checksum);
        receive
    }

    #[test]
    fn a_call_of_libmlx5_passes_whatever_its_receives_are() {
        let mut checksums = Checksums::new(QPN);
        let calls: [(u16, &[&[u32]]); 4] = [
            (0, &[&[5], &[6], &[7, 8, 9], &[], &[0], &[5, 0, 7]]),
            (6, &[&[1, 2, 3]]),
            (7, &[&[0, 0, 0], &[1, 2, 3], &[4]]),
            (0xffff, &[&[1], &[2]]),
        ];
        for (first, receives) in calls {
            for (n, lengths) in receives.iter().enumerate() {
                let index = first.wrapping_add(n as u16);
                assert_eq!(checksums.check(index, &signed(first, lengths)), Ok(()), "{index} {lengths:?}");
            }
        }
    }

    #[test]
    fn each_covered_byte_and_number_counts() {
        let right = signed(8, &[5, 6]);
        for at in 0..48 {
            let mut wrong = right;
            wrong[at] ^= 0x40;
            assert!(Checksums::new(QPN).check(8, &wrong).is_err(), "byte {at}");
        }
        assert!(Checksums::new(QPN).check(8, &right).is_ok());
        assert!(Checksums::new(QPN + 2).check(8, &right).is_err());
        assert!(Checksums::new(QPN).check(10, &right).is_err());
        assert!(Checksums::new(QPN).check(8, &[0; 64]).is_err());
        assert!(Checksums::new(QPN).check(8, &right[..8]).is_err());
    }

    #[test]
    fn only_successors_in_a_call_may_carry_its_index() {
        let mut checksums = Checksums::new(QPN);
        assert!(checksums.check(8, &signed(8, &[5])).is_ok());
        assert!(checksums.check(9, &signed(9, &[5, 6, 7])).is_ok());
        assert!(checksums.check(10, &signed(8, &[5, 6, 7])).is_err());
        assert!(checksums.check(11, &signed(9, &[5, 6, 7])).is_err());
    }
}
