//! Search for shared libraries.

use crate::read;
use std::path::PathBuf;

/// Returns the first library whose file name begins with `prefix`, in the directories that the loader and pkg-config
/// search by default.
pub(super) fn find_library(prefix: &str) -> Option<PathBuf> {
    let mut directories: Vec<PathBuf> =
        ["/usr/local/lib", "/usr/local/lib64", "/usr/lib64", "/usr/lib", "/lib"].map(PathBuf::from).into();
    // Debian has a directory for each architecture.
    for base in ["/usr/local/lib", "/usr/lib"] {
        let names = read::read_names(base).into_iter().filter(|name| name.ends_with("-linux-gnu"));
        directories.extend(names.map(|name| PathBuf::from(base).join(name)));
    }
    directories.into_iter().find_map(|directory| {
        let name = read::read_names(&directory).into_iter().find(|name| name.starts_with(prefix))?;
        Some(directory.join(name))
    })
}
