//! [`SystemRandom`]: the numbers of queue pairs and the keys of memory come from the kernel's random number generator.
//!
//! Nothing is kept between two draws, so a child of `fork(2)`, which has no device anyway, shares nothing.

use roce::engine::Random;

/// The system's random source.
#[derive(Debug)]
pub(crate) struct SystemRandom;

impl Random for SystemRandom {
    fn draw(&mut self) -> Option<u32> {
        verbs_core::random::draw().ok()
    }
}
