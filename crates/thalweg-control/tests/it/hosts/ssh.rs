//! Nodes that are started over ssh, by the real one.

use super::Site;
use super::site::{node_program, nodes_text, process_of};
use std::fs;
use std::path::Path;
use std::process::Command;
use thalweg_control::state::{CommandName, ExperimentState};
use thalweg_control::status::TroubleLevel;
use thalweg_testing::skip::skipped;

const SSHD: &str = "/usr/sbin/sshd";
const HOSTS: [&str; 5] = ["daq-0", "builder-0", "adc-0", "adc-1", "adc-2"];
/// Configuration of the ssh client on the host of the service.
const CLIENT_CONFIG: [(&str, &str); 1] = [("ssh_config", "/etc/ssh/ssh_config")];

/// Makes hosts of which all but the first have an ssh server, and a service that may log in there.
fn start_site() -> Option<Site> {
    if !Path::new(SSHD).exists() {
        skipped("no ssh server is installed (openssh-server)");
        return None;
    }
    let mut site = Site::new(&HOSTS)?;
    let folder = site.folder.path().to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    for key in ["user_key", "host_key"] {
        let mut command = Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
        assert!(command.status().unwrap().success());
    }
    fs::copy(path("user_key.pub"), path("authorized_keys")).unwrap();
    fs::write(path("known_hosts"), format!("* {}", fs::read_to_string(path("host_key.pub")).unwrap())).unwrap();
    let client = format!(
        "User root\nIdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nStrictHostKeyChecking yes\n",
        path("user_key"),
        path("known_hosts")
    );
    fs::write(path("ssh_config"), client).unwrap();
    let server = format!(
        "HostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
         PermitRootLogin prohibit-password\n",
        path("host_key"),
        path("authorized_keys")
    );
    fs::write(path("sshd_config"), server).unwrap();
    // Debian's unit makes this directory of the server's.
    fs::create_dir_all("/run/sshd").unwrap();
    for host in 1..5 {
        let mut command = site.command(host, &[], SSHD);
        command.args(["-D", "-e", "-f", &path("sshd_config")]);
        site.start_daemon(host, command, &format!("sshd-{host}.log"));
        site.wait_for_port(host, 22);
    }
    let mut topology = format!(
        "[run]\ndirectory = \"{}\"\n[control]\nlisten = \"0.0.0.0:8400\"\nurl = \"http://daq-0:8400\"\n[control.nodes]\n",
        path("runs")
    );
    for (node, host) in [("builder", "builder-0"), ("adc-0", "adc-0"), ("adc-1", "adc-1"), ("adc-2", "adc-2")] {
        let program = node_program();
        topology +=
            &format!("{node} = {{ manager = \"ssh\", host = \"{host}\", program = \"{}\" }}\n", program.display());
    }
    fs::write(path("lab.toml"), topology + &nodes_text(&["adc-0", "adc-1", "adc-2"], "5s")).unwrap();
    site.start_service(&CLIENT_CONFIG, &[]);
    Some(site)
}

#[test]
fn five_hosts_take_a_run_and_one_that_is_cut_off_is_named_and_comes_back() {
    let Some(site) = start_site() else { return };
    site.control(&["configure"]);
    site.control(&["arm"]);
    let status = site.status();
    for (node, host) in [("builder", "builder-0"), ("adc-0", "adc-0"), ("adc-1", "adc-1"), ("adc-2", "adc-2")] {
        let process = process_of(&status, node);
        assert_eq!((process.host.as_str(), process.manager.as_str(), process.state.as_str()), (host, "ssh", "up"));
    }
    site.wait_for("a start", |status| status.commands[&CommandName::Start].legal);
    site.control(&["start"]);
    site.wait_for("events", |status| status.totals.events > 20);

    site.set_cable(3, "down");
    let status = site.wait_for("an incomplete event", |status| !status.incomplete_events.is_empty());
    let missing = &status.incomplete_events[0].missing[0];
    assert_eq!((missing.source.as_str(), missing.host.as_str()), ("adc-1", "adc-1"));
    let address = missing.address.as_deref().unwrap_or_default();
    assert!(address.starts_with(&format!("{}:", Site::address(3))), "{address}");
    let status = site.wait_for("the end of its connection", |status| process_of(status, "adc-1").state != "up");
    assert_eq!(process_of(&status, "adc-1").host, "adc-1", "where it was is known");
    assert_eq!(status.sources[1].severity, TroubleLevel::Major, "{:?}", status.sources[1]);
    assert_eq!(status.state, ExperimentState::Running);

    site.set_cable(3, "up");
    site.wait_for_process("adc-1", "up");
    site.control(&["stop"]);
    site.wait_for("its end", |status| matches!(status.state, ExperimentState::Armed | ExperimentState::Error));
    assert_eq!(site.run_info(1)["state"], "INCOMPLETE");
    site.control(&["configure"]);
    site.control(&["arm"]);
    assert_eq!(site.take_run(2), "COMPLETE");
}

#[test]
fn a_process_is_ended_and_started_over_ssh_and_its_log_is_shown() {
    let Some(mut site) = start_site() else { return };
    site.control(&["configure"]);
    let first = site.wait_for_process("builder", "up").pid;
    let log = site.control(&["log", "builder"]);
    assert!(log.contains("listening on tcp:"), "{log}");
    site.control(&["process", "stop", "builder"]);
    site.wait_for_process("builder", "down");
    site.control(&["process", "start", "builder"]);
    let second = site.wait_for_process("builder", "up");
    assert_eq!(second.host, "builder-0");
    assert_ne!(second.pid, first);

    // Nodes outlive the service and its connections.
    site.kill_service();
    site.start_service(&CLIENT_CONFIG, &[]);
    assert_eq!(site.wait_for_process("builder", "up").pid, second.pid);

    // A host that cannot be reached.
    site.control(&["process", "stop", "adc-0"]);
    site.wait_for_process("adc-0", "down");
    site.set_cable(2, "down");
    site.control(&["process", "start", "adc-0"]);
    site.wait_for_process("adc-0", "failed");
    let log = site.control(&["log", "adc-0"]);
    assert!(log.contains("connect to host adc-0"), "{log}");
    site.set_cable(2, "up");
    site.control(&["process", "start", "adc-0"]);
    site.wait_for_process("adc-0", "up");
}

#[test]
fn an_address_that_other_hosts_cannot_reach_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let control = "[control.nodes]\nadc-0 = { manager = \"ssh\", host = \"adc-0\" }\n";
    fs::write(folder.path().join("lab.toml"), control.to_owned() + &nodes_text(&["adc-0"], "60s")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg-control"));
    let output = command.args(["control", "lab.toml"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let reason = String::from_utf8(output.stderr).unwrap();
    assert!(reason.contains("would look for the service at http://127.0.0.1:8400"), "{reason}");
    assert!(reason.contains("write listen = \"0.0.0.0:8400\" and url = \"http://"), "{reason}");
}
