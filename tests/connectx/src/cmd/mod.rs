//! The command interface: what the driver asks for through the command queue.
//!
//! | module | commands |
//! |---|---|
//! | `queue` | entries, mailboxes, completion |

pub(crate) mod queue;
