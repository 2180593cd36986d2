//! Named network namespaces, so that `ip netns exec NAME …` can inspect them from outside.

use crate::LabError;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

/// Directory in which `ip netns` keeps namespaces: ip-netns(8).
pub(crate) const NAMESPACES: &str = "/run/netns";

/// A network namespace, by its name.
#[derive(Debug, Clone)]
pub(crate) struct Namespace(String);

impl Namespace {
    /// Returns the namespace of this name, which need not exist yet.
    pub(crate) fn with_name(name: String) -> Self {
        Self(name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Runs a function inside, in a thread of its own: what that thread opens and starts belongs to the namespace.
    pub(crate) fn run_inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| -> Result<T, LabError> {
                self.enter_for_good()?;
                Ok(act())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread into the namespace, for good.
    pub(crate) fn enter_for_good(&self) -> Result<(), LabError> {
        let path = Path::new(NAMESPACES).join(&self.0);
        let file = File::open(&path).map_err(LabError::file_error(path))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(LabError::system_error(format!("entering the network namespace {}", self.0)))
    }
}

/// Deletes those of these namespaces that exist.
pub(crate) fn delete_namespaces<'a>(spaces: impl Iterator<Item = &'a Namespace>) {
    let there = spaces.filter(|space| Path::new(NAMESPACES).join(&space.0).exists());
    let commands: String = there.map(|space| format!("netns delete {}\n", space.0)).collect();
    if !commands.is_empty() {
        // A namespace that cannot be deleted stays visible in `ip netns`.
        let _ = super::run_batch("ip", &commands);
    }
}
