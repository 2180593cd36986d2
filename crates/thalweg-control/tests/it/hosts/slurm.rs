//! Nodes that are jobs of Slurm, by its real daemons.

use super::Site;
use super::site::{node_program, nodes_text, process_of};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use thalweg_control::status::ProcessView;
use thalweg_testing::skip::skipped;

const HOSTS: [&str; 4] = ["daq-0", "builder-0", "adc-0", "adc-1"];

/// Cluster of which all hosts but the first run jobs, and the service that submits them.
struct Cluster {
    site: Site,
}

impl Cluster {
    /// Starts it; `None` where Slurm is not installed, and the test is skipped.
    fn start() -> Option<Self> {
        for program in ["munged", "slurmctld", "slurmd", "sbatch"] {
            if Command::new("sh")
                .args(["-c", &format!("command -v {program}")])
                .output()
                .is_ok_and(|o| !o.status.success())
            {
                skipped(format!("no {program} is installed (munge, slurmctld, slurmd, slurm-client)"));
                return None;
            }
        }
        let mut site = Site::new(&HOSTS)?;
        let folder = site.folder.path().display().to_string();
        // Its daemons and their clients find each other by files that the user of munge has to reach.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(site.path("munge.key"), [7; 1024]).unwrap();
        fs::set_permissions(site.path("munge.key"), fs::Permissions::from_mode(0o400)).unwrap();
        let mut munge = site.command(0, &[], "munged");
        munge.args(["--foreground", "--force"]);
        for (option, file) in [
            ("key-file", "munge.key"),
            ("socket", "munge"),
            ("pid-file", "munge.pid"),
            ("seed-file", "seed"),
            ("log-file", "munge.log"),
        ] {
            munge.arg(format!("--{option}={folder}/{file}"));
        }
        site.start_daemon(0, munge, "munged.log");
        fs::write(site.path("slurm.conf"), configuration(&folder)).unwrap();
        let mut controller = site.command(0, &[], "slurmctld");
        controller.args(["-D", "-f", &format!("{folder}/slurm.conf")]);
        site.start_daemon(0, controller, "slurmctld.out");
        site.wait_for_port(0, 6817);
        for (host, name) in (1..).zip(&HOSTS[1..]) {
            let mut daemon = site.command(host, &[], "slurmd");
            daemon.args(["-D", "-N", name, "-f", &format!("{folder}/slurm.conf")]);
            site.start_daemon(host, daemon, &format!("slurmd-{name}.out"));
            site.wait_for_port(host, 6818);
        }
        fs::write(site.path("lab.toml"), topology(&folder)).unwrap();
        let mut cluster = Self { site };
        cluster.start_service();
        Some(cluster)
    }

    fn start_service(&mut self) {
        let variables = [("SLURM_CONF", self.site.path("slurm.conf"))];
        self.site.start_service(&[], &variables);
    }

    /// Runs a command of Slurm, which must succeed. Returns what it prints.
    fn slurm(&self, words: &[&str]) -> String {
        let mut command = self.site.command(0, &[], words[0]);
        command.args(&words[1..]).env("SLURM_CONF", self.site.path("slurm.conf"));
        let output = self.site.run(0, command);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the numbers of the jobs of a node that wait or run.
    fn jobs(&self, node: &str) -> Vec<String> {
        let name = format!("--name=thalweg-{node}");
        self.slurm(&["squeue", "--noheader", "--format=%A", &name]).lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Waits until the last line about a node has this text.
    fn wait_for_line(&self, node: &str, text: &str) -> ProcessView {
        let status = self.site.wait_for(text, |status| process_of(status, node).last_line.contains(text));
        process_of(&status, node).clone()
    }
}

fn configuration(folder: &str) -> String {
    let files = ["StateSaveLocation=state", "SlurmctldPidFile=slurmctld.pid", "SlurmctldLogFile=slurmctld.log"]
        .iter()
        .chain(&["SlurmdSpoolDir=spool-%n", "SlurmdPidFile=slurmd-%n.pid", "SlurmdLogFile=slurmd-%n.log"])
        .map(|entry| entry.replace('=', &format!("={folder}/")) + "\n");
    format!(
        "ClusterName=thalweg\nSlurmctldHost=daq-0\nSlurmUser=root\nAuthType=auth/munge\nAuthInfo=socket={folder}/munge\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\nSchedulerParameters=batch_sched_delay=0\n\
         NodeName={} CPUs=1 State=UNKNOWN\nPartitionName=daq Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n{}",
        HOSTS[1..].join(","),
        files.collect::<String>()
    )
}

fn topology(folder: &str) -> String {
    let mut text = format!(
        "[run]\ndirectory = \"{folder}/runs\"\n[control]\nlisten = \"0.0.0.0:8400\"\nurl = \"http://daq-0:8400\"\n[control.nodes]\n"
    );
    let program: PathBuf = node_program();
    for (node, host) in [("builder", "builder-0"), ("adc-0", "adc-0"), ("adc-1", "adc-1")] {
        text += &format!(
            "{node} = {{ manager = \"slurm\", program = \"{}\", options = [\"--partition=daq\", \"--nodelist={host}\"] }}\n",
            program.display()
        );
    }
    text + &nodes_text(&["adc-0", "adc-1"], "60s")
}

#[test]
fn nodes_are_jobs_that_are_found_again_and_ended() {
    let Some(mut cluster) = Cluster::start() else { return };
    cluster.site.control(&["configure"]);
    cluster.site.control(&["arm"]);
    for (node, host) in [("builder", "builder-0"), ("adc-0", "adc-0"), ("adc-1", "adc-1")] {
        let status = cluster.site.status();
        let process = process_of(&status, node);
        assert_eq!((process.host.as_str(), process.manager.as_str(), process.state.as_str()), (host, "slurm", "up"));
    }
    assert_eq!(cluster.site.take_run(1), "COMPLETE");
    let log = cluster.site.control(&["log", "builder"]);
    assert!(log.contains("listening on tcp:"), "{log}");
    let token = cluster.site.path("runs/.control/tokens.toml");
    let secret = fs::read_to_string(token).unwrap();
    let shown = cluster.slurm(&["scontrol", "show", "job", "--details"]);
    let secrets = secret.split('"').filter(|word| word.len() > 20);
    assert!(secrets.into_iter().all(|secret| !shown.contains(secret)), "no token is shown to others: {shown}");

    // One that is ended, by its job.
    cluster.site.control(&["process", "stop", "adc-1"]);
    cluster.site.wait_for_process("adc-1", "down");
    // One that waits is found again by another service, and is not submitted twice.
    cluster.slurm(&["scontrol", "update", "nodename=adc-1", "state=drain", "reason=test"]);
    cluster.site.control(&["process", "start", "adc-1"]);
    cluster.wait_for_line("adc-1", "is PENDING");
    let job = cluster.jobs("adc-1");
    assert_eq!(job.len(), 1);
    cluster.site.kill_service();
    cluster.start_service();
    assert_eq!(cluster.wait_for_line("adc-1", "is PENDING").state, "starting");
    cluster.site.control(&["process", "start", "adc-1"]);
    cluster.wait_for_line("adc-1", "already: it is waited for");
    assert_eq!(cluster.jobs("adc-1"), job);
    cluster.site.control(&["process", "stop", "adc-1"]);
    cluster.site.wait_for_process("adc-1", "down");
    assert!(cluster.jobs("adc-1").is_empty());
    cluster.slurm(&["scontrol", "update", "nodename=adc-1", "state=resume"]);
    cluster.site.control(&["process", "start", "adc-1"]);
    let first = cluster.site.wait_for_process("adc-1", "up").pid;
    cluster.site.control(&["process", "restart", "adc-1"]);
    cluster.site.wait_for("another job", |status| {
        let process = process_of(status, "adc-1");
        process.state == "up" && process.pid != first
    });
    cluster.site.control(&["configure"]);
    cluster.site.control(&["arm"]);
    assert_eq!(cluster.site.take_run(2), "COMPLETE");

    // A job that Slurm refuses: the reason is a message.
    let lab = fs::read_to_string(cluster.site.path("lab.toml")).unwrap();
    fs::write(cluster.site.path("lab.toml"), lab.replace("--partition=daq", "--partition=none")).unwrap();
    cluster.site.control(&["configure"]);
    cluster.site.control(&["process", "stop", "adc-1"]);
    cluster.site.wait_for_process("adc-1", "down");
    cluster.site.control(&["process", "start", "adc-1"]);
    cluster.wait_for_line("adc-1", "invalid partition");
}
