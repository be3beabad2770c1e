//! The bytes sent to the file, with pipes and `/dev/null` in place of the kernel.

use std::io::Read;

use super::*;
use crate::channel::{Attr, Uhw, Uverbs};
use crate::cmd;
use crate::error::Cause;
use crate::ring::page_size;

fn framed(command: &WriteCmd<'_>, address: u64) -> Vec<u8> {
    let mut out = vec![0; 256];
    let length = frame(command, address, &mut out).unwrap();
    out.truncate(length);
    out
}

#[test]
fn a_plain_command_counts_everything_in_four_byte_words_and_starts_with_the_reply_address() {
    let core_in = [0_u64, 0x1122].map(u64::to_ne_bytes).concat();
    let (mut core_out, mut driver_out) = ([0; 8], [0; 16]);
    let command = WriteCmd::new(18, &core_in, &mut core_out, Uhw::reply(&mut driver_out));
    let bytes = framed(&command, 0xdead_beef);
    assert_eq!(bytes.len(), 8 + 16);
    assert_eq!(bytes[..4], 18_u32.to_ne_bytes());
    assert_eq!(bytes[4..6], 6_u16.to_ne_bytes(), "header included");
    assert_eq!(bytes[6..8], 6_u16.to_ne_bytes(), "the driver's reply included");
    assert_eq!(bytes[8..16], 0xdead_beef_u64.to_ne_bytes());
    assert_eq!(bytes[16..], 0x1122_u64.to_ne_bytes());
}

#[test]
fn a_plain_command_without_a_reply_keeps_its_first_bytes() {
    let core_in = 7_u64.to_ne_bytes();
    let bytes = framed(&WriteCmd::new(4, &core_in, &mut [], Uhw::none()), 0);
    assert_eq!(bytes[4..8], [4, 0, 0, 0]);
    assert_eq!(bytes[8..], core_in);
}

#[test]
fn an_extended_command_counts_in_eight_byte_words_and_leaves_the_headers_out() {
    let core_in = [0xaa; 24];
    let mut core_out = [0; 40];
    let bytes = framed(&WriteCmd::extended(1, &core_in, &mut core_out, Uhw::none()), 0x1000);
    assert_eq!(bytes[..4], (1 | IB_USER_VERBS_CMD_FLAG_EXTENDED).to_ne_bytes());
    assert_eq!(bytes[4..8], [3, 0, 5, 0]);
    assert_eq!(bytes[8..16], 0x1000_u64.to_ne_bytes());
    assert_eq!(bytes[16..24], [0; 8]);
    assert_eq!(bytes[24..], core_in);
}

#[test]
fn lengths_that_the_header_cannot_say_are_refused() {
    let mut out = [0; 64];
    let odd = WriteCmd::new(1, &[0; 6], &mut [], Uhw::none());
    assert_eq!(frame(&odd, 0, &mut out).unwrap_err(), Errno::INVAL);
    let odd = WriteCmd::extended(1, &[0; 12], &mut [], Uhw::none());
    assert_eq!(frame(&odd, 0, &mut out).unwrap_err(), Errno::INVAL);
}

#[test]
fn short_input_travels_in_the_attribute() {
    assert_eq!(inline_or_address(&[1, 2, 3]), u64::from_ne_bytes([1, 2, 3, 0, 0, 0, 0, 0]));
    let long = [9; 9];
    assert_eq!(inline_or_address(&long), long.as_ptr().addr() as u64);
}

/// Creates a channel over a file chosen by the test.
fn over(file: impl Into<OwnedFd>) -> FdChannel {
    FdChannel { fd: Arc::new(file.into()) }
}

fn dev_null() -> FdChannel {
    over(std::fs::File::options().read(true).write(true).open("/dev/null").unwrap())
}

/// Creates a channel that writes to a one-page pipe, and returns the read end for the test.
fn pipe() -> (FdChannel, std::io::PipeReader) {
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: changes the size of a pipe's buffer.
    let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, page()) };
    assert_eq!(size, page());
    (over(writer), reader)
}

fn page() -> i32 {
    i32::try_from(page_size()).unwrap()
}

#[test]
fn a_file_without_verbs_refuses_the_ioctl() {
    let mut ioctl = Ioctl { object_id: 0, method_id: 0, driver_id: 0, attrs: &mut [] };
    assert_eq!(dev_null().ioctl(&mut ioctl), Err(Errno::NOTTY));
}

#[test]
fn a_file_that_takes_every_command_gives_no_descriptor() {
    // SAFETY: no reply over this channel names a descriptor.
    let uverbs = unsafe { Uverbs::new(Box::new(dev_null()), 18, "rxe0") };
    let channel = cmd::context::create_comp_channel(&uverbs).unwrap_err();
    let context = cmd::context::get_context(&uverbs, Uhw::none()).unwrap_err();
    for error in [channel, context] {
        assert_eq!(error.errno, Errno::PROTO);
        assert_eq!(error.cause, Cause::BadReply { what: "a file descriptor that is negative" });
    }
}

#[test]
fn the_command_fd_is_the_file_itself() {
    let channel = dev_null();
    assert_eq!(channel.cmd_fd().unwrap().as_raw_fd(), channel.fd.as_raw_fd());
}

#[test]
fn the_bytes_of_a_command_arrive_in_one_piece() {
    let (channel, mut reader) = pipe();
    let core_in = [0_u64, 0x1122].map(u64::to_ne_bytes).concat();
    let mut core_out = [0; 8];
    channel.write(&mut WriteCmd::new(18, &core_in, &mut core_out, Uhw::none())).unwrap();
    let mut bytes = [0; 64];
    assert_eq!(reader.read(&mut bytes).unwrap(), 8 + 16, "header and core, no more");
    assert_eq!(bytes[..8], [18, 0, 0, 0, 6, 0, 2, 0]);
    assert_ne!(bytes[8..16], [0; 8], "the reply has an address");
    assert_eq!(bytes[16..24], 0x1122_u64.to_ne_bytes());
}

#[test]
fn what_the_kernel_leaves_out_of_a_reply_stays_as_it_was() {
    // The longest reply that fits on the stack and the shortest that does not.
    for len in [8, 504, 512, 520, 4096] {
        let (mut core_out, mut driver_out) = (vec![0xc0; len], [0xd1; 16]);
        let mut command = WriteCmd::new(1, &[0; 8], &mut core_out, Uhw::reply(&mut driver_out));
        dev_null().write(&mut command).unwrap();
        assert_eq!((core_out, driver_out), (vec![0xc0; len], [0xd1; 16]));
    }
}

#[test]
fn a_reply_longer_than_the_stacks_buffer_arrives_whole() {
    for len in [8, 504, 2000] {
        let (channel, mut reader) = pipe();
        // The input is longer than the pipe: in the middle of the command, the channel waits for
        // the reader, which plays the kernel.
        let core_in = vec![0; 2 * page_size()];
        let (mut core_out, mut driver_out) = (vec![0; len], [0; 16]);
        let kernel = std::thread::spawn(move || {
            let mut head = vec![0; page_size()];
            reader.read_exact(&mut head).unwrap();
            let address = u64::from_ne_bytes(*head[8..].first_chunk().unwrap());
            let reply: *mut u8 = core::ptr::with_exposed_provenance_mut(address as usize);
            for at in 0..len + 16 {
                // SAFETY: the channel exposed a buffer of this length and waits until the rest of
                // the command has been read.
                unsafe { reply.add(at).write(at as u8) };
            }
            let mut rest = vec![0; 8 + page_size()];
            reader.read_exact(&mut rest).unwrap();
        });
        channel.write(&mut WriteCmd::new(1, &core_in, &mut core_out, Uhw::reply(&mut driver_out))).unwrap();
        kernel.join().unwrap();
        let written: Vec<u8> = (0..len + 16).map(|at| at as u8).collect();
        assert_eq!([&*core_out, &driver_out].concat(), written, "{len} bytes");
    }
}

#[test]
fn a_command_that_is_taken_in_part_is_an_error() {
    let (channel, _reader) = pipe();
    // SAFETY: sets a flag of the pipe.
    let result = unsafe { libc::fcntl(channel.fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
    let core_in = vec![0; 2 * page_size()];
    assert_eq!(channel.write(&mut WriteCmd::new(1, &core_in, &mut [], Uhw::none())), Err(Errno::IO));
    assert_eq!(channel.write(&mut WriteCmd::new(1, &[], &mut [], Uhw::none())), Err(Errno::AGAIN));
}

#[test]
fn lengths_beyond_sixteen_bits_of_words_are_too_big() {
    let (plain, extended) = (vec![0; 4 * 0x1_0000], vec![0; 8 * 0x1_0000]);
    let null = dev_null();
    for result in [
        null.write(&mut WriteCmd::new(1, &plain, &mut [], Uhw::none())),
        null.write(&mut WriteCmd::new(1, &[0; 8], &mut plain.clone(), Uhw::none())),
        null.write(&mut WriteCmd::extended(1, &extended, &mut [], Uhw::none())),
        null.write(&mut WriteCmd::extended(1, &[0; 8], &mut extended.clone(), Uhw::none())),
    ] {
        assert_eq!(result, Err(Errno::TOOBIG));
    }
    // In a plain command, the header counts as two of the words.
    let longest = 4 * 0xffff - size_of::<IbUverbsCmdHdr>();
    assert_eq!(null.write(&mut WriteCmd::new(1, &plain[..longest], &mut [], Uhw::none())), Ok(()));
    assert_eq!(
        null.write(&mut WriteCmd::new(1, &plain[..longest + 4], &mut [], Uhw::none())),
        Err(Errno::TOOBIG)
    );
}

#[test]
fn an_ioctl_has_room_for_so_many_attributes_and_no_more() {
    let mut attrs: Vec<_> = (0..=MAX_ATTRS as u16).map(|id| Attr::u32(id, 7)).collect();
    let null = dev_null();
    let ioctl =
        |attrs: &mut [Attr<'_>]| null.ioctl(&mut Ioctl { object_id: 0, method_id: 0, driver_id: 0, attrs });
    assert_eq!(ioctl(&mut attrs), Err(Errno::TOOBIG));
    assert_eq!(ioctl(&mut attrs[..MAX_ATTRS]), Err(Errno::NOTTY), "asked, and /dev/null has no verbs");
    let long = [0; 0x1_0000];
    assert_eq!(ioctl(&mut [Attr::input(1, &long)]), Err(Errno::TOOBIG));
    assert_eq!(ioctl(&mut [Attr::output(1, &mut long.clone())]), Err(Errno::TOOBIG));
}

#[test]
fn an_ioctl_that_the_kernel_does_not_fill_in_has_no_descriptor() {
    let (mut handle, mut fd) = (0, 0);
    let mut attrs = [Attr::new_handle(1, &mut handle), Attr::new_fd(2, &mut fd)];
    let mut command = Ioctl { object_id: 16, method_id: 0, driver_id: 18, attrs: &mut attrs };
    let mut buffer = IoctlBuffer::<MAX_ATTRS>::new();
    buffer.lay_out(&mut command).unwrap();
    buffer.read_back(&mut command);
    let _ = command;
    assert_eq!(fd, -1);

    let mut attrs = [Attr::new_handle(1, &mut handle), Attr::new_fd(2, &mut fd)];
    let mut command = Ioctl { object_id: 16, method_id: 0, driver_id: 18, attrs: &mut attrs };
    (buffer.attrs[0].data, buffer.attrs[1].data) = (9, 11);
    buffer.read_back(&mut command);
    let _ = command;
    assert_eq!((handle, fd), (9, 11));
}

#[test]
fn an_attribute_of_an_enumeration_carries_its_member_beside_the_bytes() {
    let long = [7; 56];
    let mut attrs = [
        Attr::enumerated(3, 1, &[0x40, 0, 0, 0]),
        Attr::enumerated(4, 2, &long),
        Attr::enumerated(5, 3, &[]),
    ];
    let mut command = Ioctl { object_id: 13, method_id: 0, driver_id: 1, attrs: &mut attrs };
    let mut buffer = IoctlBuffer::<MAX_ATTRS>::new();
    buffer.lay_out(&mut command).unwrap();
    let [short, long_one, empty] = [buffer.attrs[0], buffer.attrs[1], buffer.attrs[2]];
    assert_eq!((short.attr_id, short.len, short.attr_data.as_enum_data().elem_id), (3, 4, 1));
    assert_eq!(short.data, u64::from_ne_bytes([0x40, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!((long_one.len, long_one.attr_data.as_enum_data().elem_id), (56, 2));
    assert_eq!(long_one.data, long.as_ptr().addr() as u64);
    assert_eq!((empty.len, empty.data, empty.attr_data.as_enum_data().elem_id), (0, 0, 3));
}
