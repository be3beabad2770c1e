//! [`CommandQueue`]: entries, mailboxes, completion.

/// The command queue.
#[derive(Debug, Default)]
pub(crate) struct CommandQueue {}
