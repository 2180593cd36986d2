//! Reading of the kernel's texts for people: small, and never trusted to have the expected shape.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longest text that is read, in bytes: `/proc/interrupts` of a large machine has some hundred KiB.
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// Limit on processor numbers and on their count, above any real one (`CONFIG_NR_CPUS`): a hostile list must not fill
/// memory.
const MAX_PROCESSORS: u32 = 1 << 16;

/// Returns a file's text without the white space around it; `None` if it does not exist or cannot be read.
pub(crate) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    let bytes = read_first_bytes(path, MAX_TEXT_BYTES)?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Returns the first `longest` bytes of a file at most.
pub(crate) fn read_first_bytes(path: impl AsRef<Path>, longest: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(longest).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Returns a file's text as a number.
pub(crate) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.parse().ok()
}

/// Returns the names in a directory, sorted; none if it does not exist.
pub(crate) fn read_names(path: impl AsRef<Path>) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the value after `key:` in `/proc/meminfo` or `/proc/self/status`.
pub(crate) fn value_after_key<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// Returns a value stated in `kB`, in bytes.
pub(crate) fn kibibyte_value(text: &str, key: &str) -> Option<u64> {
    value_after_key(text, key)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the choice in brackets: `madvise` of `always [madvise] never`.
pub(crate) fn bracketed_choice(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(chosen, _)| chosen)
}

/// Returns the numbers in a list of processors or nodes: `0-3,5`.
pub(crate) fn parse_number_list(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>())
            && last < MAX_PROCESSORS
            && numbers.len() < MAX_PROCESSORS as usize
        {
            numbers.extend(first..=last);
        }
    }
    numbers
}

/// Returns the text, or `unknown` if there is none.
pub(crate) fn text_or_unknown(text: Option<impl Into<String>>) -> String {
    text.map_or_else(|| "unknown".to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMINFO: &str = "MemTotal:       24684084 kB\nMemFree:        24231236 kB\nHugePages_Free:        3\n";

    #[test]
    fn values_are_found_by_their_whole_key() {
        assert_eq!(kibibyte_value(MEMINFO, "MemFree"), Some(24_231_236 * 1024));
        assert_eq!(kibibyte_value(MEMINFO, "Mem"), None);
        assert_eq!(kibibyte_value(MEMINFO, "HugePages_Free"), None, "a count has no unit");
        assert_eq!(value_after_key(MEMINFO, "HugePages_Free"), Some("3"));
    }

    #[test]
    fn lists_and_choices_are_read() {
        assert_eq!(parse_number_list("0-3,5"), [0, 1, 2, 3, 5]);
        assert!(parse_number_list("").is_empty());
        assert_eq!(parse_number_list("3-1,x,-,7"), [7]);
        assert!(parse_number_list("0-4294967295").is_empty(), "no machine has that number");
        assert_eq!(bracketed_choice("always within_size advise [never] deny force"), Some("never"));
        assert_eq!(bracketed_choice("]["), None);
    }

    #[test]
    fn figures_are_short() {}

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "\\PC*|[0-9,\\-\\[\\]: kB\\n]*") {
            prop_assert!(parse_number_list(&text).len() < 2 * MAX_PROCESSORS as usize);
            bracketed_choice(&text);
            kibibyte_value(&text, "Mem");
            value_after_key(&text, &text);
        }
    }
}
