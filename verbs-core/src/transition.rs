//! Which attributes which QP transition takes.
