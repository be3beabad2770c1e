//! The filter program: which system calls the supervisor is asked about.
//!
//! It lets everything pass but `write(2)`, and `ioctl(2)` with the request `RDMA_VERBS_IOCTL`. A call in another
//! architecture's convention passes as well: what is tested here speaks the native one.
//!
//! # References
//! `seccomp(2)`; Linux, `Documentation/userspace-api/seccomp_filter.rst`

use libc::sock_filter;
use uverbs_abi::rdma_user_ioctl_cmds::RDMA_VERBS_IOCTL;

/// How the kernel calls the architecture that this is compiled for.
#[cfg(target_arch = "x86_64")]
pub const AUDIT_ARCH: u32 = 0xc000_003e;
/// How the kernel calls the architecture that this is compiled for.
#[cfg(target_arch = "aarch64")]
pub const AUDIT_ARCH: u32 = 0xc000_00b7;

/// Where `struct seccomp_data` holds the system call's number.
const NR: u32 = 0;
/// Where it holds the architecture.
const ARCH: u32 = 4;
/// Where it holds the second argument. The kernel looks at 32 bits of an ioctl's request.
const ARG1_LOW: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };

/// The program, ready for `seccomp(2)`.
pub fn program() -> Vec<sock_filter> {
    // Jumps count the instructions that are left out.
    vec![
        load(ARCH),
        unless_equal(AUDIT_ARCH, 3),
        load(NR),
        if_equal(libc::SYS_ioctl as u32, 2),
        if_equal(libc::SYS_write as u32, 4),
        answer(libc::SECCOMP_RET_ALLOW),
        load(ARG1_LOW),
        if_equal(RDMA_VERBS_IOCTL, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_USER_NOTIF),
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

    /// Runs the program on a `struct seccomp_data` as the kernel would. `None` where the kernel would not have loaded it.
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

    fn verdict(arch: u32, nr: i64, request: u64) -> Option<u32> {
        run(&program(), arch, nr, [3, request, 0x7fff_0000, 0, 0, 0])
    }

    #[test]
    fn rdma_ioctls_and_writes_are_asked_about() {
        let ask = Some(libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, RDMA_VERBS_IOCTL.into()), ask);
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_write, 0), ask);
        // A program that extends the request's sign must not escape.
        assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, !0 << 32 | u64::from(RDMA_VERBS_IOCTL)), ask);
    }

    #[test]
    fn every_other_call_passes() {
        let pass = Some(libc::SECCOMP_RET_ALLOW);
        for request in [0, 1, libc::TIOCGWINSZ, u64::from(RDMA_VERBS_IOCTL) ^ 1] {
            assert_eq!(verdict(AUDIT_ARCH, libc::SYS_ioctl, request), pass);
        }
        for nr in (0..600).filter(|nr| ![libc::SYS_ioctl, libc::SYS_write].contains(nr)) {
            assert_eq!(verdict(AUDIT_ARCH, nr, RDMA_VERBS_IOCTL.into()), pass, "system call {nr}");
        }
    }

    #[test]
    fn calls_of_another_architecture_pass() {
        for nr in 0..600 {
            assert_eq!(verdict(AUDIT_ARCH ^ 1, nr, RDMA_VERBS_IOCTL.into()), Some(libc::SECCOMP_RET_ALLOW));
        }
    }
}
