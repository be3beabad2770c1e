//! The kernel image in the form that boots fastest: unpacked.
//!
//! A bzImage unpacks itself inside the guest, which costs an emulated processor two to five
//! seconds. The same ELF file, unpacked once on the host, starts at once through its PVH entry
//! point.
//!
//! # References
//! The kernel's Documentation/arch/x86/boot.rst (setup header: setup_sects, payload_offset,
//! payload_length), and xen/include/public/elfnote.h (XEN_ELFNOTE_PHYS32_ENTRY).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::kernel::Kernel;
use crate::{apt, cache};

/// Returns a kernel's unpacked image from the cache, or its packed image if it has no PVH entry
/// point, if it is packed in an unknown way, or if QEMU lacks its option ROM for the entry point.
pub(crate) fn find_or_unpack(kernel: &Kernel) -> Result<PathBuf> {
    let identity = cache::hash(&[cache::stamps(&[&kernel.image])?.as_bytes()]);
    let unpacked = cache::dir()?.join("images").join(format!("{}-{identity:016x}.elf", kernel.release));
    let roms = ["/usr/share/qemu/pvh.bin", "/usr/share/seabios/pvh.bin"];
    if !roms.iter().any(|rom| Path::new(rom).exists()) {
        return Ok(kernel.image.clone());
    }
    if !unpacked.exists() {
        let temporary = unpacked.with_extension(std::process::id().to_string());
        fs::create_dir_all(temporary.with_file_name(""))?;
        let elf = unpack_image(&kernel.image, &temporary);
        let Some(elf) = elf.ok().filter(|elf| has_pvh_entry(elf)) else { return Ok(kernel.image.clone()) };
        fs::write(&temporary, elf)?;
        fs::rename(&temporary, &unpacked)?;
    }
    Ok(unpacked)
}

fn unpack_image(packed: &Path, temporary: &Path) -> Result<Vec<u8>> {
    let image = fs::read(packed)?;
    let (unpacker, payload) = payload(&image).context("packed in an unknown way")?;
    fs::write(temporary, payload)?;
    let input = File::open(temporary)?;
    fs::remove_file(temporary)?;
    unpack(unpacker, input)
}

/// Returns a file's contents after `xz` or `zstd` has unpacked it.
pub(super) fn unpack(unpacker: &str, file: File) -> Result<Vec<u8>> {
    let program = apt::find_program(unpacker).with_context(|| format!("{unpacker} is missing"))?;
    let output = Command::new(program).args(["-q", "-d", "-c"]).stdin(file).output()?;
    ensure!(output.status.success(), "{unpacker} failed: {}", output.status);
    Ok(output.stdout)
}

/// Returns the compressed kernel inside a bzImage, with the program for unpacking it.
fn payload(image: &[u8]) -> Option<(&'static str, &[u8])> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    let setup_sectors = if image.get(0x1f1)? == &0 { 4 } else { usize::from(image[0x1f1]) };
    let start = (setup_sectors + 1) * 512 + u32_at(0x248)?;
    // The unpacked size follows the compressed data.
    let payload = image.get(start..(start + u32_at(0x24c)?).checked_sub(4)?)?;
    match (image.get(0x202..0x206)?, payload) {
        (b"HdrS", [0xfd, b'7', b'z', b'X', b'Z', 0, ..]) => Some(("xz", payload)),
        (b"HdrS", [0x28, 0xb5, 0x2f, 0xfd, ..]) => Some(("zstd", payload)),
        _ => None,
    }
}

/// Returns whether an ELF image has the note with its PVH entry point, by its type and owner.
fn has_pvh_entry(elf: &[u8]) -> bool {
    const PHYS32_ENTRY: &[u8; 8] = b"\x12\0\0\0Xen\0";
    elf.starts_with(b"\x7fELF\x02\x01") && elf.windows(8).any(|bytes| bytes == PHYS32_ENTRY)
}

#[test]
fn the_payload_is_found_by_the_setup_header() {
    let bzimage = |setup_sectors: u8, payload: &[u8]| {
        let sectors = if setup_sectors == 0 { 4 } else { usize::from(setup_sectors) };
        let mut image = vec![0; (sectors + 1) * 512 + 32];
        image[0x1f1] = setup_sectors;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248] = 32;
        image[0x24c] = u8::try_from(payload.len() + 4).unwrap();
        [&image, payload, &[0xaa; 4]].concat()
    };
    let packed = b"\xfd7zXZ\0packed";
    for sectors in [0, 1, 27] {
        assert_eq!(payload(&bzimage(sectors, packed)), Some(("xz", packed.as_slice())));
    }
    assert_eq!(payload(&bzimage(4, b"\x28\xb5\x2f\xfdz")).unwrap().0, "zstd");
    assert_eq!(payload(&bzimage(4, b"\x1f\x8bgzip")), None);
}
