//! The C library's cancellation points, which `points.toml` lists.

use std::sync::LazyLock;

use serde::Deserialize;

/// The lists in `points.toml`, which explains them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Points {
    pub(super) raw: Vec<String>,
    pub(super) guarded: Vec<String>,
    pub(super) waits: Vec<String>,
    pub(super) all: Vec<String>,
}

pub(super) static POINTS: LazyLock<Points> =
    LazyLock::new(|| toml::from_str(include_str!("points.toml")).expect("lists of names"));

impl Points {
    /// Returns whether the image may not call a function.
    pub(super) fn forbids(&self, name: &str) -> bool {
        let has = |list: &[String]| list.iter().any(|listed| listed == name);
        has(&self.all) && !has(&self.guarded) && !has(&self.waits)
    }
}

#[test]
fn each_replaced_function_is_a_cancellation_point() {
    let Points { raw, guarded, waits, all } = &*POINTS;
    for name in [raw, guarded, waits].into_iter().flatten() {
        assert!(all.contains(name), "{name}");
    }
}
