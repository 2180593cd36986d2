//! Speed at which the disk takes blocks, measured on request.
//!
//! Writes one block after the other, each when the one before is on its way to be safe: a lower bound, since the
//! recorder has several in flight. The file never has a name (`O_TMPFILE`): it is gone when this process ends, however
//! it ends.

use super::{place, writes};
use crate::{Finding, Needs, read};
use rustix::fs::{Mode, OFlags, fdatasync, open, statvfs};
use rustix::io::{Errno, ReadWriteFlags, pwrite, pwritev2};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use thalweg_arena::Arena;
use thalweg_wire::mix_bits;

/// Size of the default block in bytes.
const BLOCK_BYTES: usize = 4 << 20;
/// Longest time for writing; half a second is left for what the disk has in its own memory.
const MAX_WRITE_TIME: Duration = Duration::from_millis(1500);
/// Largest number of bytes written, and the divisor of the free space that limits it.
const MAX_WRITE_BYTES: u64 = 8 << 30;
const FREE_SPACE_DIVISOR: u64 = 10;
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

pub(super) fn probe_write_speed(needs: &Needs) -> [Finding; 3] {
    let place = place::nearest_existing(&needs.directory);
    let kind = read::text_or_unknown(place::file_system_type(&place));
    let method = format!("tried on an unnamed file in {}, on {kind}", place.display());
    let direct = open_nameless_file(&place, OFlags::DIRECT);
    let cached = open_nameless_file(&place, OFlags::empty());
    let page = [0u8; 4096];
    let uncached = cached
        .as_ref()
        .map_err(|error| *error)
        .and_then(|file| pwritev2(file, &[IoSlice::new(&page)], 0, DONTCACHE).map(drop));
    let (file, how) = match (&direct, &cached) {
        (Ok(file), _) => (Ok(file), "O_DIRECT"),
        (Err(_), Ok(file)) => (Ok(file), "through the page cache"),
        (_, Err(error)) => (Err(*error), ""),
    };
    let speed = match file {
        Ok(file) => match measure_write_speed(file, &place) {
            Ok(measured) => judge_write_speed(needs.data.bytes_per_second, measured, how),
            Err(error) => Finding::new("disk speed", format!("not measured: {error}")),
        },
        // NFS, for example, has no files without a name.
        Err(error) => Finding::new("disk speed", format!("not measured: {error} for an unnamed file; {method}")),
    };
    let direct = direct.as_ref().map(drop).map_err(|error| *error);
    [
        writes::direct_write_finding(direct, &method),
        writes::uncached_write_finding(uncached, &method),
        speed.with_request(),
    ]
}

fn open_nameless_file(place: &Path, more: OFlags) -> Result<OwnedFd, Errno> {
    open(place, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more, Mode::RUSR | Mode::WUSR)
}

/// Bytes written, and the seconds that it took.
type Measured = (u64, f64);

fn measure_write_speed(file: &OwnedFd, place: &Path) -> Result<Measured, String> {
    let mut block = Arena::create_local("doctor", BLOCK_BYTES).map_err(|error| error.to_string())?;
    // Disks may leave out zeros, and repeated data.
    for (word, number) in block.chunks_exact_mut(8).zip(1..) {
        word.copy_from_slice(&mix_bits(number).to_ne_bytes());
    }
    let free = statvfs(place).map(|at| at.f_bavail.saturating_mul(at.f_frsize)).unwrap_or(0);
    let most = MAX_WRITE_BYTES.min(free / FREE_SPACE_DIVISOR);
    if most < BLOCK_BYTES as u64 {
        return Err("there is too little free space for a measurement".into());
    }
    let begun = Instant::now();
    let mut written = 0u64;
    while begun.elapsed() < MAX_WRITE_TIME && written + BLOCK_BYTES as u64 <= most {
        // Each block differs, for disks that detect repetitions.
        block[..8].copy_from_slice(&written.to_ne_bytes());
        let mut done = 0;
        while done < BLOCK_BYTES {
            match pwrite(file, &block[done..BLOCK_BYTES], written + done as u64) {
                Ok(0) => return Err("the disk accepted no bytes".into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        written += BLOCK_BYTES as u64;
    }
    fdatasync(file).map_err(|error| error.to_string())?;
    Ok((written, begun.elapsed().as_secs_f64()))
}

fn judge_write_speed(wanted: Option<f64>, (bytes, seconds): Measured, how: &str) -> Finding {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let rate = bytes as f64 / seconds.max(1e-9);
    let evidence = format!(
        "{}, one write of {} at a time, {how}: {} in {}",
        thalweg_text::format_rate(rate),
        thalweg_text::format_size(BLOCK_BYTES as u64),
        thalweg_text::format_volume(bytes),
        thalweg_text::format_seconds(seconds)
    );
    let Some(wanted) = wanted else { return Finding::new("disk speed", evidence) };
    let finding =
        Finding::new("disk speed", format!("{evidence}; the run needs {}", thalweg_text::format_rate(wanted)));
    match wanted / rate {
        share if share > 1.0 => {
            finding.with_missing_level("the disk is slower than the sources: slots fill, and sources wait or drop data")
        }
        share if share > 0.8 => finding.with_degraded_level("little reserve for moments when the disk is slow"),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use thalweg_testing::skip::skipped;

    #[test]
    fn a_disk_that_is_slower_than_the_sources_is_missing() {
        let at = |wanted| judge_write_speed(wanted, (1_000_000_000, 1.0), "O_DIRECT").level;
        assert_eq!(at(None), Level::Ok);
        assert_eq!(at(Some(5e8)), Level::Ok);
        assert_eq!(at(Some(9e8)), Level::Degraded);
        assert_eq!(at(Some(2e9)), Level::Missing);
        assert_eq!(judge_write_speed(Some(1.0), (0, 0.0), "").level, Level::Missing);
    }

    #[test]
    fn nothing_is_left_of_a_measurement() {
        // In memory, and only as much as a tenth of the free space: this is no benchmark.
        let base = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let file = match open_nameless_file(base.path(), OFlags::empty()) {
            Ok(file) => file,
            Err(error) => return skipped(format_args!("files without a name: {error}")),
        };
        assert_eq!(pwrite(&file, b"x", 0), Ok(1));
        drop(file);
        assert_eq!(read::read_names(base.path()), Vec::<String>::new());
    }
}
