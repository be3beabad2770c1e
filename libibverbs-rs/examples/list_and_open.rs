//! Lists the devices, then opens and closes the first device; `cargo xtask bench` counts the
//! instructions.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = verbs::devices()?.first()?;
    let context = device.open()?;
    println!("{}", device.name());
    context.close()?;
    Ok(())
}
