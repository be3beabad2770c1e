//! The time to create and connect many queue pairs.

use std::time::Instant;

use crate::ends::{Side, connect};
use crate::{Result, Table};

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let count = if table.is_full { 1000 } else { 10 };
    let name = format!("setup of {count} pairs, in all");
    if !table.wants(&name) {
        return Ok(());
    }
    let sides = [Side::new(4, false)?, Side::new(4, false)?];
    let start = Instant::now();
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push(connect([&sides[0], &sides[1]], [sides[0].create_qp()?, sides[1].create_qp()?])?);
    }
    println!("{name:44} {:25.0} ns", start.elapsed().as_nanos());
    Ok(())
}
