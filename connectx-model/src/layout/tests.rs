layout! {
    /// An example structure for these tests.
    example: 0x18 {
        HIGH 0x00 31 28;
        MIDDLE 0x00 23 8;
        LONG 0x04 63 0;
        ADDRESS 0x0c 63 12;
        INNER bytes 0x14 0x4;
        LIST @ 0x18;
    }
}

#[test]
fn a_field_is_read_and_written_where_its_row_says() {
    let mut bytes = [0; example::SIZE];
    example::HIGH.set(&mut bytes, 0xau64);
    example::MIDDLE.set(&mut bytes, 0x1234u64);
    example::LONG.set(&mut bytes, 0x1122_3344_5566_7788u64);
    assert_eq!(bytes[..12], [0xa0, 0x12, 0x34, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    assert_eq!(example::MIDDLE.get(&bytes), 0x1234);
    assert_eq!(example::LONG.get(&bytes), 0x1122_3344_5566_7788);
    example::ADDRESS.set(&mut bytes, 0x000f_ffff_0000_0001_u64);
    assert_eq!(bytes[12..20], [0xff, 0xff, 0xf0, 0, 0, 0, 0x10, 0]);
}

#[test]
fn a_value_is_truncated_and_neighbouring_bits_stay() {
    let mut bytes = [0xff; example::SIZE];
    example::HIGH.set(&mut bytes, 0x15u64);
    assert_eq!(bytes[..4], [0x5f, 0xff, 0xff, 0xff]);
}

#[test]
fn bits_that_no_row_names_are_found_and_parts_are_left_alone() {
    let mut bytes = [0; example::SIZE + 4];
    assert_eq!(example::TABLE.reserved(&bytes), None);
    bytes[0x14] = 0xff;
    bytes[0x18] = 0xff;
    assert_eq!(example::TABLE.reserved(&bytes), None);
    bytes[0x13] = 1;
    assert_eq!(example::TABLE.reserved(&bytes), Some((0x10, 1)));
    bytes[3] = 0x80;
    assert_eq!(example::TABLE.reserved(&bytes), Some((0, 0x80)));
}

#[test]
fn short_bytes_read_as_zero_and_are_not_written_past_their_end() {
    let mut bytes = [0xff; 5];
    assert_eq!(example::LONG.get(&bytes), 0);
    example::LONG.set(&mut bytes, 1u64);
    assert_eq!(bytes, [0xff; 5]);
    assert_eq!(example::INNER.bytes(&bytes), &[] as &[u8]);
    assert_eq!(bytes.get(example::LIST..), None);
}

#[test]
fn a_structure_is_described_by_its_nonzero_fields() {
    let mut bytes = [0; example::SIZE];
    example::MIDDLE.set(&mut bytes, 7u64);
    assert_eq!(example::TABLE.describe(&bytes), "middle=0x7");
}
