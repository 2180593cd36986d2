//! Programs of this machine, and the user's cache for what is built once.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns the directory of this name in the user's cache: `$XDG_CACHE_HOME/thalweg/NAME`, or below `~/.cache`.
pub fn cache_directory(name: &str) -> PathBuf {
    let [cache, home] = ["XDG_CACHE_HOME", "HOME"]
        .map(|variable| env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute()));
    let cache = cache.or_else(|| Some(home?.join(".cache")));
    cache.unwrap_or_else(env::temp_dir).join("thalweg").join(name)
}

/// Returns the path of a program in the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_program(file))
}

/// Returns whether a file can be executed.
pub(crate) fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
