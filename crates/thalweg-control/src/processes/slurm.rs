//! Nodes as jobs of Slurm, by `sbatch`, `squeue` and `scancel`. A job is found again by its comment: which node it is,
//! and of which service.

use super::Observation;
use super::TOKEN_VARIABLE;
use super::command::{new_command, quote_word, run_command};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Fields of a job as `squeue` prints them: number, state, its reason or hosts, comment. The comment is last: it may have
/// the mark between fields.
const FORMAT: &str = "%A|%T|%R|%k";

/// Job of Slurm that runs a node.
#[derive(Debug, Clone)]
pub struct Job {
    /// Name of the node.
    pub node: String,
    /// Path of the program on the host of the job.
    pub program: String,
    /// Options of `sbatch`.
    pub options: Vec<String>,
    /// Addresses of the services, with commas between them.
    pub url: String,
    /// Token of nodes.
    pub token: String,
    /// File of its log.
    pub log: PathBuf,
    /// Lock of the jobs of this service: while it is held, no other one is submitted.
    pub submission: Arc<Mutex<()>>,
}

/// Job as `squeue` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedJob {
    /// Number of the job.
    pub id: u64,
    /// State: see squeue(1), "job state codes".
    pub state: String,
    /// Reason for which it waits or has failed, or the hosts on which it runs.
    pub reason: String,
    /// Comment on the job.
    pub comment: String,
}

impl ListedJob {
    /// Returns whether it waits, or runs.
    fn is_active(&self) -> bool {
        matches!(self.state.as_str(), "PENDING" | "CONFIGURING" | "RUNNING" | "SUSPENDED" | "STOPPED" | "REQUEUED")
    }
}

impl Job {
    /// Returns the comment by which the job is found again.
    fn comment(&self) -> String {
        // Each service of an experiment has its own address first.
        let mut urls: Vec<&str> = self.url.split(',').collect();
        urls.sort_unstable();
        format!("thalweg:{}:{}", self.node, urls.join(","))
    }

    /// Submits the job, if there is none of this node that waits or runs.
    ///
    /// # Errors
    /// There is one, Slurm refuses it, or does not answer.
    pub async fn submit(&self) -> Result<(), String> {
        let _submission = self.submission.lock().await;
        if let Some(job) = self.find_job(&list_jobs().await?).filter(|job| job.is_active()) {
            return Err(format!(
                "job {} of node '{}' is {} {} already: it is waited for; end it (thalweg ctl process stop) before another \
                 one is submitted",
                job.id, self.node, job.state, job.reason
            ));
        }
        let mut command = new_command("sbatch");
        command.env(TOKEN_VARIABLE, &self.token);
        command.args(["--parsable", "--no-requeue", "--open-mode=append"]);
        command.arg(format!("--job-name=thalweg-{}", self.node)).arg(format!("--comment={}", self.comment()));
        command.arg(format!("--output={}", self.log.display())).args(&self.options);
        let [program, url, node] = [&self.program, &self.url, &self.node].map(|word| quote_word(word));
        let script = format!("#!/bin/sh\nexec {program} node --control {url} -- {node}\n");
        run_command(command, &script).await.map(drop)
    }

    /// Ends the job: one that is connected ends its run first, and has the time for it that it needs.
    ///
    /// # Errors
    /// There is none, Slurm refuses that, or does not answer.
    pub async fn cancel(&self, is_connected: bool) -> Result<(), String> {
        let job = self.find_job(&list_jobs().await?).filter(|job| job.is_active());
        let job =
            job.ok_or_else(|| format!("node '{}' has no job that waits or runs: there is nothing to stop", self.node))?;
        let mut command = new_command("scancel");
        if is_connected {
            // Without a signal's name it is killed after the cluster's KillWait.
            command.args(["--batch", "--signal=TERM"]);
        }
        command.arg(job.id.to_string());
        run_command(command, "").await.map(drop)
    }

    /// Returns the state of the node's last job. `jobs` as from [`list_jobs`].
    pub fn observe(&self, jobs: &[ListedJob]) -> Observation {
        let Some(job) = self.find_job(jobs) else {
            return Observation { state: "down", text: format!("node '{}' has no job", self.node) };
        };
        let state = match job.state.as_str() {
            _ if job.is_active() => "starting",
            "COMPLETED" | "CANCELLED" | "COMPLETING" => "down",
            _ => "failed",
        };
        Observation { state, text: format!("job {} is {} {}", job.id, job.state, job.reason).trim_end().to_owned() }
    }

    /// Returns the newest job of the node.
    fn find_job(&self, jobs: &[ListedJob]) -> Option<ListedJob> {
        let comment = self.comment();
        jobs.iter().filter(|job| job.comment == comment).max_by_key(|job| job.id).cloned()
    }
}

/// Returns the jobs of this user, with those that have ended a short time ago.
///
/// # Errors
/// Slurm does not answer.
pub async fn list_jobs() -> Result<Vec<ListedJob>, String> {
    let mut command = new_command("squeue");
    command.args(["--me", "--noheader", "--states=all", "--format", FORMAT]);
    run_command(command, "").await.map(|text| read_jobs(&text))
}

/// Reads lines of `squeue` in the form of [`FORMAT`]. Others are left out.
fn read_jobs(text: &str) -> Vec<ListedJob> {
    text.lines().filter_map(read_job).collect()
}

fn read_job(line: &str) -> Option<ListedJob> {
    let mut fields = line.trim().splitn(4, '|').map(thalweg_text::replace_controls);
    let id = fields.next()?.parse().ok()?;
    let [state, reason, comment] = [fields.next()?, fields.next()?, fields.next()?].map(Cow::into_owned);
    Some(ListedJob { id, state, reason, comment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(node: &str) -> Job {
        Job {
            node: node.into(),
            program: "thalweg".into(),
            options: Vec::new(),
            url: "http://daq-0:8400".into(),
            token: String::new(),
            log: PathBuf::new(),
            submission: Arc::default(),
        }
    }

    #[test]
    fn a_job_is_found_by_its_comment_and_the_newest_counts() {
        let jobs = read_jobs(
            "7|COMPLETED|adc-0|thalweg:adc-0:http://daq-0:8400\n8|PENDING|(Resources)|thalweg:adc-0:http://daq-0:8400\n\
             9|RUNNING|adc-1|thalweg:adc-0:http://daq-1:8400\n10|FAILED|(NonZeroExitCode)|thalweg:adc-1:http://daq-0:8400\n\
             x|y\n11|RUNNING\n",
        );
        assert_eq!(jobs.len(), 4);
        let states = ["adc-0", "adc-1", "adc-2"].map(|node| job(node).observe(&jobs));
        assert_eq!(states.each_ref().map(|observation| observation.state), ["starting", "failed", "down"]);
        assert_eq!(states[0].text, "job 8 is PENDING (Resources)");
        assert_eq!(states[1].text, "job 10 is FAILED (NonZeroExitCode)");
        let [one, other] =
            ["http://a,http://b", "http://b,http://a"].map(|url| Job { url: url.into(), ..job("adc-0") });
        assert_eq!(one.comment(), other.comment(), "each service finds the jobs of another one");
    }

    proptest! {
        #[test]
        fn whatever_squeue_prints_is_read(text in ".*", fields in prop::collection::vec("[^\n\r]*", 0..6)) {
            for job in read_jobs(&text).into_iter().chain(read_jobs(&format!("1|{}", fields.join("|")))) {
                prop_assert!([job.state, job.reason, job.comment].iter().all(|field| !field.contains(char::is_control)));
            }
        }

        #[test]
        fn a_job_is_read_as_it_is_printed(id in any::<u64>(), comment in "[a-z:|/-]{0,40}") {
            let jobs = read_jobs(&format!("{id}|RUNNING|adc-0|{comment}"));
            prop_assert_eq!(&jobs[0].comment, &comment);
            prop_assert_eq!(jobs[0].id, id);
        }
    }
}
