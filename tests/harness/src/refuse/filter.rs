//! The filter program, which selects system calls for the supervisor to decide on.
//!
//! It passes everything except `write(2)`, `ioctl(2)` with the request `RDMA_VERBS_IOCTL`, and
//! `socket(2)` for RDMA netlink. Calls made with another architecture's calling convention also
//! pass, because the tested programs use the native convention.
//!
//! # References
//! `seccomp(2)`; Linux, `Documentation/userspace-api/seccomp_filter.rst`

use libc::sock_filter;
use uverbs_abi::rdma_user_ioctl_cmds::RDMA_VERBS_IOCTL;

/// The kernel's number for the target architecture.
#[cfg(target_arch = "x86_64")]
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// The kernel's number for the target architecture.
#[cfg(target_arch = "aarch64")]
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// The offset of the system call's number in `struct seccomp_data`.
const NR: u32 = 0;
/// The offset of the architecture in `struct seccomp_data`.
const ARCH: u32 = 4;
/// The offset of the arguments in `struct seccomp_data`. They have 64 bits each. Of the arguments
/// checked here, the kernel uses 32 bits.
const ARGS: u32 = 16;

/// Returns the offset of an argument's lower half.
const fn low(argument: u32) -> u32 {
    ARGS + 8 * argument + if cfg!(target_endian = "little") { 0 } else { 4 }
}

/// Returns the program, ready for `seccomp(2)`.
pub fn program() -> Vec<sock_filter> {
    // A jump's operands count the instructions to skip.
    vec![
        load(ARCH),
        unless_equal(AUDIT_ARCH, 4),
        load(NR),
        if_equal(libc::SYS_ioctl as u32, 3),
        if_equal(libc::SYS_socket as u32, 5),
        if_equal(libc::SYS_write as u32, 9),
        answer(libc::SECCOMP_RET_ALLOW),
        load(low(1)),
        if_equal(RDMA_VERBS_IOCTL, 6),
        answer(libc::SECCOMP_RET_ALLOW),
        load(low(0)),
        unless_equal(libc::AF_NETLINK as u32, 2),
        load(low(2)),
        if_equal(libc::NETLINK_RDMA as u32, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
    ]
}

/// Returns a program that needs no supervisor: it makes `ioctl(2)` with the request
/// `RDMA_VERBS_IOCTL` fail with ENOTTY and passes everything else.
pub fn without_ioctls() -> Vec<sock_filter> {
    vec![
        load(ARCH),
        unless_equal(AUDIT_ARCH, 4),
        load(NR),
        unless_equal(libc::SYS_ioctl as u32, 2),
        load(low(1)),
        if_equal(RDMA_VERBS_IOCTL, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32),
    ]
}

const fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset)
}

const fn if_equal(value: u32, skip: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, 0, value)
}

const fn unless_equal(value: u32, skip: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value)
}

const fn answer(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, action)
}

const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program on a `struct seccomp_data`, as the kernel would. Returns `None` if the
    /// kernel would not have loaded it.
    fn run(program: &[sock_filter], arch: u32, nr: i64, args: [u64; 6]) -> Option<u32> {
        let mut data = Vec::new();
        data.extend((nr as u32).to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend(0u64.to_ne_bytes());
        args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let step = program.get(at)?;
            at += 1;
            match u32::from(step.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let word = data.get(step.k as usize..step.k as usize + 4)?;
                    accumulator = u32::from_ne_bytes(word.try_into().ok()?);
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if accumulator == step.k { step.jt } else { step.jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return Some(step.k),
                _ => return None,
            }
        }
    }

    fn verdict(arch: u32, nr: i64, args: [u64; 3]) -> Option<u32> {
        run(&program(), arch, nr, [args[0], args[1], args[2], 0, 0, 0])
    }

    const ASK: Option<u32> = Some(libc::SECCOMP_RET_USER_NOTIF);
    const PASS: Option<u32> = Some(libc::SECCOMP_RET_ALLOW);
    const REQUEST: u64 = RDMA_VERBS_IOCTL as u64;
    /// The request number of a terminal ioctl. The type of the libc crate's constant depends on the
    /// C library.
    const TIOCGWINSZ: u64 = 0x5413;
    const NETLINK: u64 = libc::AF_NETLINK as u64;
    const RDMA: u64 = libc::NETLINK_RDMA as u64;

    #[test]
    fn rdma_ioctls_rdma_sockets_and_writes_are_asked_about() {
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, REQUEST, 0]), ASK);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_write, [3, 0, 0]), ASK);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_socket, [NETLINK, 3, RDMA]), ASK);
        // A program that sign-extends an argument must not escape the filter.
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, !0 << 32 | REQUEST, 0]), ASK);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_socket, [!0 << 32 | NETLINK, 3, RDMA]), ASK);
    }

    #[test]
    fn every_other_call_passes() {
        for request in [0, 1, TIOCGWINSZ, REQUEST ^ 1] {
            assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, request, RDMA]), PASS);
        }
        for (family, protocol) in
            [(NETLINK, 0), (NETLINK, RDMA ^ 1), (libc::AF_INET as u64, RDMA), (0, REQUEST)]
        {
            assert_eq!(verdict(AUDIT_ARCH, libc::SYS_socket, [family, 3, protocol]), PASS);
        }
        let asked = [libc::SYS_ioctl, libc::SYS_write, libc::SYS_socket];
        for nr in (0..600).filter(|nr| !asked.contains(nr)) {
            for args in [[3, REQUEST, 0], [NETLINK, 3, RDMA]] {
                assert_eq!(verdict(AUDIT_ARCH, nr, args), PASS, "system call {nr}");
            }
        }
    }

    #[test]
    fn one_program_refuses_rdma_ioctls_by_itself_and_nothing_else() {
        let verdict =
            |arch, nr, args: [u64; 3]| run(&without_ioctls(), arch, nr, [args[0], args[1], args[2], 0, 0, 0]);
        let refused = Some(libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, REQUEST, 0]), refused);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, !0 << 32 | REQUEST, 0]), refused);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, [3, REQUEST ^ 1, 0]), PASS);
        assert_eq!(verdict(AUDIT_ARCH ^ 1, libc::SYS_ioctl, [3, REQUEST, 0]), PASS);
        for nr in (0..600).filter(|nr| *nr != libc::SYS_ioctl) {
            assert_eq!(verdict(AUDIT_ARCH, nr, [3, REQUEST, 0]), PASS, "system call {nr}");
        }
    }

    #[test]
    fn calls_of_another_architecture_pass() {
        for nr in 0..600 {
            for args in [[3, REQUEST, 0], [NETLINK, 3, RDMA]] {
                assert_eq!(verdict(AUDIT_ARCH ^ 1, nr, args), PASS);
            }
        }
    }
}
