//! The kernel image in the form that boots fastest: unpacked.
//!
//! A bzImage unpacks itself inside the guest, which costs an emulated processor two to five
//! seconds. The same ELF file, unpacked once on the host, starts through its PVH entry point at
//! once.
//!
//! # References
//! The kernel's Documentation/arch/x86/boot.rst (setup header: setup_sects, payload_offset,
//! payload_length), and xen/include/public/elfnote.h (XEN_ELFNOTE_PHYS32_ENTRY).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::kernel::Kernel;
use crate::{apt, cache};

/// Returns the unpacked image of a kernel from the cache, or the packed one if this kernel has no
/// PVH entry point or is packed in an unknown way.
pub(crate) fn find_or_unpack(kernel: &Kernel) -> Result<PathBuf> {
    let packed = &kernel.image;
    let metadata = fs::metadata(packed).with_context(|| format!("cannot read {}", packed.display()))?;
    let identity = cache::hash(&[
        packed.as_os_str().as_encoded_bytes(),
        format!("{} {:?}", metadata.len(), metadata.modified()?).as_bytes(),
    ]);
    let home = cache::dir()?.join("images");
    let unpacked = home.join(format!("{}-{identity:016x}.elf", kernel.release));
    if unpacked.exists() {
        return Ok(unpacked);
    }
    fs::create_dir_all(&home)?;
    let temporary = home.join(format!(".{identity:016x}-{}", std::process::id()));
    let elf = unpack(packed, &temporary);
    let is_usable = |elf: &[u8]| has_pvh_entry(elf) && pvh_loader().is_some();
    let Some(elf) = elf.ok().filter(|elf| is_usable(elf)) else { return Ok(packed.clone()) };
    fs::write(&temporary, elf)?;
    fs::rename(&temporary, &unpacked)?;
    Ok(unpacked)
}

/// Returns QEMU's option ROM for kernels with a PVH entry point, if it is installed.
fn pvh_loader() -> Option<&'static Path> {
    ["/usr/share/qemu/pvh.bin", "/usr/share/seabios/pvh.bin"].map(Path::new).into_iter().find(|p| p.exists())
}

fn unpack(packed: &Path, temporary: &Path) -> Result<Vec<u8>> {
    let image = fs::read(packed)?;
    let (unpacker, payload) = payload(&image)?;
    let program = apt::find_program(unpacker).with_context(|| format!("{unpacker} is missing"))?;
    fs::write(temporary, payload)?;
    let input = File::open(temporary)?;
    fs::remove_file(temporary)?;
    let output = Command::new(program).args(["-q", "-d", "-c"]).stdin(input).output()?;
    ensure!(output.status.success(), "{unpacker} cannot unpack {}", packed.display());
    Ok(output.stdout)
}

/// Returns the compressed kernel inside a bzImage, and the program that unpacks it.
fn payload(image: &[u8]) -> Result<(&'static str, &[u8])> {
    let u32_at = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("too short for a bzImage")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    ensure!(image.get(0x202..0x206) == Some(b"HdrS".as_slice()), "not a bzImage");
    let setup_sectors = match image[0x1f1] {
        0 => 4,
        n => usize::from(n),
    };
    let start = (setup_sectors + 1) * 512 + u32_at(0x248)?;
    let end = start + u32_at(0x24c)?;
    // The unpacked size follows the compressed data.
    let payload = image.get(start..end.saturating_sub(4)).context("the payload is cut off")?;
    match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Ok(("xz", payload)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(("zstd", payload)),
        _ => bail!("packed in an unknown way"),
    }
}

/// Returns whether an ELF image has the note with its PVH entry point: its kind, and its owner.
fn has_pvh_entry(elf: &[u8]) -> bool {
    const PHYS32_ENTRY: &[u8; 8] = b"\x12\0\0\0Xen\0";
    elf.starts_with(b"\x7fELF\x02\x01") && elf.windows(8).any(|bytes| bytes == PHYS32_ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bzimage(setup_sectors: u8, payload: &[u8]) -> Vec<u8> {
        let sectors = if setup_sectors == 0 { 4 } else { usize::from(setup_sectors) };
        let mut image = vec![0; (sectors + 1) * 512 + 32];
        image[0x1f1] = setup_sectors;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&32u32.to_le_bytes());
        let length = u32::try_from(payload.len() + 4).unwrap();
        image[0x24c..0x250].copy_from_slice(&length.to_le_bytes());
        image.extend_from_slice(payload);
        image.extend_from_slice(&[0xaa; 4]);
        image
    }

    #[test]
    fn the_payload_is_found_by_the_setup_header() {
        let packed = b"\xfd7zXZ\0packed";
        for sectors in [0, 1, 27] {
            let image = bzimage(sectors, packed);
            assert_eq!(payload(&image).unwrap(), ("xz", packed.as_slice()));
        }
        assert_eq!(payload(&bzimage(4, b"\x28\xb5\x2f\xfdz")).unwrap().0, "zstd");
        assert!(payload(&bzimage(4, b"\x1f\x8bgzip")).is_err());
    }
}
