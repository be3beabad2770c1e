//! Lists the devices, opens and closes the first: `cargo xtask bench` counts its instructions.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = verbs::devices()?.first()?;
    let context = device.open()?;
    println!("{}", device.name());
    context.close()?;
    Ok(())
}
