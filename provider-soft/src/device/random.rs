//! [`SystemRandom`]: draws queue pair numbers and memory keys from the kernel's random number
//! generator.
//!
//! No state is kept between draws, so a parent and a child share no state after `fork(2)`.

use roce::engine::Random;

/// The kernel's random number generator.
#[derive(Debug)]
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn draw(&mut self) -> Option<u32> {
        verbs_core::random::draw().ok()
    }
}
