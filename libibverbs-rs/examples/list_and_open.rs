//! Lists the devices, opens the first and closes it: what `cargo xtask bench` counts the
//! instructions of.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = verbs::devices()?.first()?;
    let context = device.open()?;
    println!("{}", device.name());
    context.close()?;
    Ok(())
}
