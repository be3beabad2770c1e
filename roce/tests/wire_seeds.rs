//! The seeds of the fuzz target `packet`: one packet for each known opcode, emitted by the wire
//! formats.
//!
//! To rewrite the seeds after an intended change:
//! `ROCE_WRITE_SEEDS=1 cargo test -p roce --test wire_seeds`.

use std::fs;
use std::path::Path;

use roce::wire::packet::pad_for;
use roce::wire::{
    Flow, Headers, ICRC_LEN, Icrc, Opcode, Psn, Syndrome, aeth, atomic_ack_eth, atomic_eth, bth, deth, feth,
    icrc, ieth, imm, reth, xrceth,
};

fn seed(opcode: Opcode) -> Vec<u8> {
    let payload: &[u8] = if opcode.has_payload() { b"payload" } else { b"" };
    let bth = bth::Repr {
        ack_req: opcode.is_request(),
        pad_cnt: pad_for(payload.len()),
        ..bth::Repr::new(opcode, 0x11, Psn::new(0xff_ffff))
    };
    let headers = Headers {
        bth,
        deth: Some(deth::Repr { qkey: 0x1111_1111, src_qp: 0x12 }),
        xrceth: Some(xrceth::Repr { xrcsrq: 0x13 }),
        feth: Some(feth::Repr { plt: feth::PLT_PERSISTENCE, sel: feth::SEL_MEMORY_REGION }),
        reth: Some(reth::Repr { va: 0x7f00_0000_1000, rkey: 0x1234, dmalen: 7 }),
        atomic_eth: Some(atomic_eth::Repr { va: 0x7f00_0000_1008, rkey: 0x1234, swap_add: 1, compare: 2 }),
        aeth: Some(aeth::Repr { syndrome: Syndrome::ACK, msn: 3 }),
        atomic_ack_eth: Some(atomic_ack_eth::Repr { orig: 4 }),
        imm: Some(imm::Repr { imm_data: 5 }),
        ieth: Some(ieth::Repr { rkey: 0x1234 }),
    };
    let mut bytes = vec![0; headers.len()];
    headers.emit(&mut bytes);
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(pad_for(payload.len())), 0);
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    let crc = icrc::compute(Icrc::new(flow).seed(0, true, bytes.len() + ICRC_LEN), &bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

#[test]
fn the_committed_seeds_are_what_the_wire_formats_make() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/packet");
    let write = std::env::var_os("ROCE_WRITE_SEEDS").is_some();
    for opcode in (0..=255).map(Opcode) {
        let Some(name) = opcode.name() else { continue };
        let path = folder.join(format!("{}.bin", name.to_lowercase()));
        if write {
            fs::write(&path, seed(opcode)).unwrap();
        }
        assert_eq!(
            fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
            seed(opcode),
            "{opcode}"
        );
    }
}
