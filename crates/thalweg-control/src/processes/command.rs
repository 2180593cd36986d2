//! Commands of other programs, on this host or by ssh on another one.

use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Time after which a command is ended, and counts as failed.
const COMMAND_TIME: Duration = Duration::from_secs(20);
/// Largest number of bytes of a command's output; the remainder is not read.
const MAX_OUTPUT_BYTES: u64 = 4 << 20;
/// Options of ssh: no questions, and an end in bounded time if the other host does not answer.
const SSH_OPTIONS: [&str; 4] = ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"];
/// Variables by which systemd reaches the service alone, and not the programs that it starts.
const OWN_VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// Returns a command without the variables that systemd has set for the service.
pub(super) fn new_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for variable in OWN_VARIABLES {
        command.env_remove(variable);
    }
    command
}

/// Returns a command that runs a script with `sh`: on another host, or on this one if there is none.
pub(super) fn shell_command(host: Option<&str>, script: &str) -> Command {
    let Some(host) = host else {
        let mut command = new_command("sh");
        command.args(["-c", script]);
        return command;
    };
    let mut command = new_command("ssh");
    command.args(SSH_OPTIONS.iter().flat_map(|option| ["-o", option])).args(["-T", "--", host]);
    // The user's shell there may be another one.
    command.arg(format!("exec sh -c {}", quote_word(script)));
    command
}

/// Returns a word for a shell.
pub(super) fn quote_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Runs a command to its end, with this input. Returns standard output.
///
/// # Errors
/// It cannot be started, fails, or takes too long; the sentence has what it printed to standard error.
pub(super) async fn run_command(command: Command, input: &str) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match tokio::time::timeout(COMMAND_TIME, run_unlimited(command, input)).await {
        Ok(result) => result.map_err(|problem| format!("{name}: {problem}")),
        Err(_) => Err(format!("{name}: no end after {} s, and ended", COMMAND_TIME.as_secs())),
    }
}

async fn run_unlimited(mut command: Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (mut text, mut errors) = (Vec::new(), Vec::new());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A program that reads nothing of it says why.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let read = async {
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_OUTPUT_BYTES).read_to_end(&mut text).await;
        }
    };
    let read_errors = async {
        if let Some(stderr) = stderr {
            let _ = stderr.take(MAX_OUTPUT_BYTES).read_to_end(&mut errors).await;
        }
    };
    tokio::join!(write, read, read_errors);
    let status = child.wait().await.map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(String::from_utf8_lossy(&text).into_owned()),
        false if errors.trim_ascii().is_empty() => Err(status.to_string()),
        false => Err(thalweg_text::replace_controls(String::from_utf8_lossy(&errors).trim()).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_a_shell_is_one_word() {
        let script = format!("printf %s {}", quote_word("a'b; $(touch x) c"));
        let output = shell_command(None, &script).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a'b; $(touch x) c");
    }

    #[tokio::test]
    async fn a_command_that_fails_has_the_reason() {
        assert_eq!(run_command(shell_command(None, "cat"), "one\n").await.unwrap(), "one\n");
        let refusal = run_command(shell_command(None, "echo no such unit >&2; exit 4"), "").await.unwrap_err();
        assert_eq!(refusal, "sh: no such unit");
        let refusal = run_command(shell_command(None, "exit 4"), "").await.unwrap_err();
        assert_eq!(refusal, "sh: exit status: 4");
        assert!(run_command(Command::new("/nowhere/ssh"), "").await.unwrap_err().starts_with("/nowhere/ssh: No such"));
    }
}
