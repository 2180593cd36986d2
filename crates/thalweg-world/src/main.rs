//! Plays worlds from seeds, and says which of them go wrong.

use clap::Parser;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use thalweg_world::{Plan, Verdict, World, judge_course, shrink_faults, try_plan, try_twice};

/// Processor time per thread after which a world counts as endless: a node loops within one turn. Wall time would blame
/// a world for a machine that is busy with other work.
const MAX_THREAD_CPU_TIME: Duration = Duration::from_secs(120);
/// One in this number of seeds is run twice.
const SEEDS_PER_RERUN: u64 = 8;

/// Plays worlds from seeds, and says which of them go wrong.
#[derive(Debug, Parser)]
struct Options {
    /// One seed, played with all that is logged
    #[arg(long)]
    seed: Option<u64>,
    /// With a seed: the faults to leave out, by their numbers
    #[arg(long, value_delimiter = ',')]
    without: Vec<usize>,
    /// With a seed: the directory to leave its runs in
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Number of seeds to play
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    seeds: u64,
    /// The first of them; drawn from the clock where it is not given
    #[arg(long)]
    from: Option<u64>,
    /// Time after which no more seeds are begun
    #[arg(long, default_value = "60s", value_parser = thalweg_text::parse_duration)]
    time: Duration,
    /// Number of seeds at a time; one for each processor where it is not given
    #[arg(long)]
    threads: Option<usize>,
    /// Directory of the recorded runs while they are examined: memory is best
    #[arg(long, default_value = "/dev/shm")]
    directory: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let played = match options.seed {
        Some(seed) => play_one_seed(&options, seed),
        None => play_many_seeds(&options),
    };
    match played {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play_one_seed(options: &Options, seed: u64) -> io::Result<bool> {
    tracing_subscriber::fmt().with_writer(io::stderr).without_time().init();
    let plan = Plan::from_seed(seed).without_faults(&options.without);
    let mut out = io::stdout().lock();
    writeln!(out, "{plan:#?}")?;
    let verdict = match &options.keep {
        Some(directory) => judge_course(&plan, &World::new(&plan, directory).run_to_end()),
        None => try_plan(&plan, &options.directory),
    };
    for wrong in &verdict.wrong {
        writeln!(out, "{wrong}")?;
    }
    writeln!(out, "{} fragments, {} things wrong", verdict.fragments, verdict.wrong.len())?;
    Ok(verdict.wrong.is_empty())
}

fn play_many_seeds(options: &Options) -> io::Result<bool> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let first = options.from.unwrap_or(now.as_secs() << 25);
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let begun = Instant::now();
    let players = Players {
        options,
        first,
        begun,
        next: AtomicU64::new(0),
        played: AtomicU64::new(0),
        fragments: AtomicU64::new(0),
        failed: Mutex::new(0),
        playing: (0..threads).map(|_| Mutex::default()).collect(),
    };
    std::thread::scope(|scope| {
        let players = &players;
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || players.play_seeds(thread))).collect();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let longest = MAX_THREAD_CPU_TIME * u32::try_from(threads).unwrap_or(u32::MAX);
            let stuck = (0..threads).find_map(|thread| {
                players.lock_present_seed(thread).filter(|(_, since)| processor_time().saturating_sub(*since) > longest)
            });
            if let Some((seed, _)) = stuck {
                let _ = writeln!(io::stdout(), "make world ARGS=\"--seed {seed}\"\n  it does not end");
                std::process::exit(1);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let Players { played, fragments, failed, .. } = players;
    let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (played, fragments, seconds) = (played.into_inner(), fragments.into_inner(), begun.elapsed().as_secs_f64());
    writeln!(
        io::stdout(),
        "{played} seeds from {first} and {fragments} fragments in {seconds:.1} s ({:.0} seeds/s, {:.0} fragments/s): \
         {failed} failed",
        played as f64 / seconds,
        fragments as f64 / seconds,
    )?;
    Ok(failed == 0)
}

/// State that all threads share.
struct Players<'a> {
    options: &'a Options,
    /// First seed.
    first: u64,
    begun: Instant,
    /// Number of seeds that were begun, and that have ended.
    next: AtomicU64,
    played: AtomicU64,
    fragments: AtomicU64,
    /// Number of seeds that failed.
    failed: Mutex<u64>,
    /// Present seed of each thread, and the processor time at its beginning.
    playing: Vec<Mutex<Option<(u64, Duration)>>>,
}

impl Players<'_> {
    /// Plays one seed after another until the time is over.
    fn play_seeds(&self, thread: usize) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            if at >= self.options.seeds || self.begun.elapsed() > self.options.time {
                return;
            }
            let seed = self.first.wrapping_add(at);
            *self.lock_present_seed(thread) = Some((seed, processor_time()));
            let verdict = play_seed(seed, self.options);
            *self.lock_present_seed(thread) = None;
            self.played.fetch_add(1, Ordering::Relaxed);
            self.fragments.fetch_add(verdict.fragments, Ordering::Relaxed);
            if !verdict.wrong.is_empty() {
                let mut failed = self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *failed += 1;
                let _ = report_failure(seed, &verdict, self.options);
            }
        }
    }

    fn lock_present_seed(&self, thread: usize) -> MutexGuard<'_, Option<(u64, Duration)>> {
        self.playing[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Returns the processor time that this process has used, all threads together.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

fn play_seed(seed: u64, options: &Options) -> Verdict {
    let plan = Plan::from_seed(seed);
    let tries = if seed.is_multiple_of(SEEDS_PER_RERUN) { try_twice } else { try_plan };
    std::panic::catch_unwind(|| tries(&plan, &options.directory))
        .unwrap_or_else(|_| Verdict { wrong: vec!["a panic".into()], ..Verdict::default() })
}

/// Reports the violations for a seed, and the command that repeats them with as few faults as possible.
fn report_failure(seed: u64, verdict: &Verdict, options: &Options) -> io::Result<()> {
    let left_out = shrink_faults(&Plan::from_seed(seed), |plan| {
        std::panic::catch_unwind(|| !try_plan(plan, &options.directory).wrong.is_empty()).unwrap_or(true)
    });
    let without = left_out.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let without = if without.is_empty() { String::new() } else { format!(" --without {without}") };
    let mut out = io::stdout().lock();
    writeln!(out, "make world ARGS=\"--seed {seed}{without}\"")?;
    verdict.wrong.iter().take(3).try_for_each(|wrong| writeln!(out, "  {wrong}"))
}
