//! Other programs: servers that run while they are measured, and fio.

use crate::BenchError;
use crate::drive::Stop;
use crate::peers::parse;
use crate::peers::program::{Program, Transport};
use crate::point::{Figures, Point, Report};
use rustix::process::Pid;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use thalweg_transfer::{ReceiveMethod, SendMethod};

/// Program that does the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contender {
    Nginx {
        sendfile: bool,
    },
    /// `thalweg serve` that sends by this method, whether the page cache has the file or not.
    ServeBy(SendMethod),
    /// `thalweg serve` that receives uploads by this method.
    ReceiveBy(ReceiveMethod),
    /// `thalweg serve`, and `thalweg mount` as its client: the file is read where it is mounted.
    Mounted {
        random: bool,
    },
    /// No server: fio reads or writes the same file past the page cache, which shows the speed of the disk.
    Fio,
}

impl Contender {
    pub(super) fn display_name(self) -> String {
        match self {
            Self::Nginx { sendfile: true } => "nginx".to_owned(),
            Self::Nginx { sendfile: false } => "nginx sendfile off".to_owned(),
            Self::ServeBy(method) => method.method_name().to_owned(),
            Self::ReceiveBy(method) => method.method_name().to_owned(),
            Self::Mounted { random: false } => "mounted, in order".to_owned(),
            Self::Mounted { random: true } => "mounted, random".to_owned(),
            Self::Fio => "fio direct".to_owned(),
        }
    }
}

/// Running server; dropping it ends it.
#[derive(Debug)]
pub(super) struct Server(Program);

impl Server {
    /// Starts a server, on the processors and in the network of this thread, and waits until it listens.
    pub(super) fn start_server(
        contender: Contender,
        thalweg: &Path,
        directory: &Path,
        address: SocketAddr,
        stop: &Stop,
    ) -> Result<Self, BenchError> {
        let (name, mut command) = match contender {
            Contender::Nginx { sendfile } => ("nginx", nginx_command(sendfile, directory, address)?),
            Contender::ServeBy(method) => {
                ("thalweg serve", serve_command(thalweg, directory, address, &["--path", method.method_name()]))
            }
            Contender::ReceiveBy(method) => {
                let how = ["--path", SendMethod::Sendfile.method_name(), "--inward", method.method_name(), "--write"];
                ("thalweg serve", serve_command(thalweg, directory, address, &how))
            }
            Contender::Mounted { .. } => (
                "thalweg serve",
                serve_command(thalweg, directory, address, &["--path", SendMethod::Ahead.method_name()]),
            ),
            Contender::Fio => return Err(BenchError::Usage("fio is not a server".to_owned())),
        };
        let mut program = Program::start(name, &mut command)?;
        program.wait_until_listening(address.port(), Transport::Tcp, stop)?;
        Ok(Self(program))
    }

    /// Returns the processor time of the server's processes so far, all their threads.
    pub(super) fn processor_time(&self) -> Result<Duration, BenchError> {
        let mut sum = Duration::ZERO;
        let children = format!("/proc/{0}/task/{0}/children", self.0.process_id().as_raw_nonzero());
        let children = fs::read_to_string(children).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
        for process in [self.0.process_id()].into_iter().chain(children) {
            sum += process_cpu_time(process).map_err(BenchError::os_error("reading a server's processor time"))?;
        }
        Ok(sum)
    }
}

/// Files of a server, mounted on this host; dropping it unmounts them.
#[derive(Debug)]
pub(super) struct Mount(Program);

impl Mount {
    /// Mounts with `thalweg mount`, at an existing directory; waits until the files are there.
    pub(super) fn mount_at(thalweg: &Path, server: SocketAddr, at: &Path, stop: &Stop) -> Result<Self, BenchError> {
        let mut command = Command::new(thalweg);
        command.arg("mount").arg(format!("http://{server}/")).arg(at);
        let mut program = Program::start("thalweg mount", &mut command)?;
        let before = rustix::fs::stat(at).map(|stat| stat.st_dev);
        program.wait_until(|| rustix::fs::stat(at).map(|stat| stat.st_dev) != before, "mount", stop)?;
        Ok(Self(program))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Ended by a request, not killed: a killed program would leave a mount behind without a process that serves it.
        let _ = self.0.end_or_kill();
    }
}

/// Reads a file in blocks of a size, by `thalweg bench file` in a process of its own.
pub(super) fn read_mounted_file(
    thalweg: &Path,
    file: &Path,
    size: u64,
    random: bool,
    time: Duration,
    stop: &Stop,
) -> Result<Figures, BenchError> {
    let mut command = Command::new(thalweg);
    command.args(["bench", "file", "--method", "buffered", "--cache", "cold", "--repeat", "1", "--json"]);
    command.args(["--pattern", if random { "random" } else { "sequential" }, "--warmup", "0", "--read-only"]).arg(file);
    command.args(["--sizes".to_owned(), size.to_string(), "--min-time".to_owned(), time.as_secs_f64().to_string()]);
    let ended = Program::start("thalweg bench file", &mut command)?.wait_for_end(FILE_PASS_TIMEOUT, stop)?;
    let report = ended.out.lines().last().and_then(|line| serde_json::from_str::<Report>(line).ok());
    let point = report.and_then(|report| report.points.into_iter().next());
    match point {
        Some(Point { error: Some(why), .. }) => {
            Err(BenchError::Program { program: "thalweg bench file".to_owned(), why })
        }
        Some(point) => Ok(point.figures),
        None => Err(ended.failure_error("thalweg bench file")),
    }
}

fn serve_command(thalweg: &Path, directory: &Path, address: SocketAddr, how: &[&str]) -> Command {
    let mut command = Command::new(thalweg);
    command
        .args(["serve", "--listen", &address.to_string(), "--open", "--connections", "4096"])
        .args(how)
        .arg(directory);
    command
}

/// Returns nginx as Debian configures it, except for the settings of its directories. One worker process for each
/// processor that this thread may use.
fn nginx_command(sendfile: bool, directory: &Path, address: SocketAddr) -> Result<Command, BenchError> {
    let text = directory.to_string_lossy();
    if text.contains(['"', '\\', '$', '\n']) {
        return Err(BenchError::Usage(format!(
            "--path {text}: nginx's configuration cannot name a directory with such characters"
        )));
    }
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let sendfile = if sendfile { "on" } else { "off" };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    // Without tcp_nopush, as by default: it corks the socket (TCP_CORK), and after it is uncorked the rest of a response of
    // two segments waits for the acknowledgement of the first, which the client's kernel delays by 40 ms. The segments of
    // a loopback are of 64 KiB, so that this affects ranges of that size there.
    let config = format!(
        "daemon off; {user} worker_processes {workers}; pid \"{text}/.nginx.pid\"; error_log stderr warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; sendfile {sendfile}; keepalive_requests 1000000000;\n\
         client_body_temp_path \"{text}/.body\"; proxy_temp_path \"{text}/.proxy\"; fastcgi_temp_path \"{text}/.fastcgi\";\n\
         uwsgi_temp_path \"{text}/.uwsgi\"; scgi_temp_path \"{text}/.scgi\";\n\
         server {{ listen {address}; root \"{text}\"; }} }}\n"
    );
    let path = directory.join(".nginx.conf");
    fs::write(&path, config).map_err(BenchError::file_error(&path))?;
    let mut command =
        Command::new(find_program("nginx", &["/usr/sbin/nginx", "/usr/local/sbin/nginx"], "nginx-light")?);
    command.arg("-c").arg(path).args(["-e", "stderr", "-p"]).arg(directory);
    Ok(command)
}

/// Result of fio for one pass over a file.
pub(super) struct Pass {
    pub(super) bytes: f64,
    pub(super) seconds: f64,
    /// Processor time, in seconds.
    pub(super) cpu: f64,
}

/// Makes one pass over a file past the page cache, 32 pieces of 1 MiB in flight; a written file is new, on the disk at
/// the end, and deleted afterwards.
pub(super) fn run_fio_pass(file: &Path, bytes: u64, write: bool, stop: &Stop) -> Result<Pass, BenchError> {
    let mut command = Command::new(find_program("fio", &[], "fio")?);
    command.args(["--name=peer", "--direct=1", "--ioengine=libaio", "--iodepth=32", "--thread"]);
    // fio splits file names at colons.
    let name = file.to_string_lossy().replace(':', "\\:");
    command.args([format!("--filename={name}"), format!("--size={bytes}"), format!("--bs={}", bytes.min(1 << 20))]);
    command.arg("--output-format=json");
    command.args(if write { &["--rw=write", "--end_fsync=1", "--unlink=1"][..] } else { &["--rw=read", "--readonly"] });
    let ended = Program::start("fio", &mut command)?.wait_for_end(FILE_PASS_TIMEOUT, stop)?;
    let measured =
        parse::parse_fio(&ended.out).filter(|_| ended.status.success()).ok_or_else(|| ended.failure_error("fio"))?;
    let (Some(bytes), Some(cpu)) = (measured.bytes, measured.cpu) else { return Err(ended.failure_error("fio")) };
    Ok(Pass { bytes, seconds: bytes * 8.0 / measured.value, cpu })
}

/// Returns the path of a program, also from directories for system programs that a user's search path may lack.
fn find_program(name: &str, elsewhere: &[&str], package: &str) -> Result<std::path::PathBuf, BenchError> {
    let elsewhere = elsewhere.iter().map(std::path::PathBuf::from).find(|file| file.is_file());
    crate::find_program(name).or(elsewhere).ok_or_else(|| BenchError::Unavailable {
        what: name.to_owned(),
        why: format!("it is not installed; apt-get install {package}"),
    })
}

fn process_cpu_time(process: Pid) -> io::Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the pointer is to a live clock id, which the call writes.
    let error = unsafe { libc::clock_getcpuclockid(process.as_raw_nonzero().get(), &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live time, which the call writes.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|number| u64::try_from(number).unwrap_or(0));
    Ok(Duration::from_secs(seconds) + Duration::from_nanos(nanos))
}

/// Longest time that one pass over a file may take: shared disks are slow at times.
const FILE_PASS_TIMEOUT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_of_a_process_is_read_while_it_runs() {
        let this = rustix::process::getpid();
        let before = process_cpu_time(this).unwrap();
        let sum = (0..5_000_000u64).fold(0u64, |sum, one| std::hint::black_box(sum ^ one.wrapping_mul(31)));
        std::hint::black_box(sum);
        assert!(process_cpu_time(this).unwrap() > before);
    }

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = find_program("no such program", &[], "absent-light").unwrap_err().to_string();
        assert_eq!(error, "no such program: not available here: it is not installed; apt-get install absent-light");
    }

    #[test]
    fn nginx_does_not_cork_its_connections() {
        let directory = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        // The configuration is written before the program is looked for.
        let _ = nginx_command(true, directory.path(), address);
        let config = fs::read_to_string(directory.path().join(".nginx.conf")).unwrap();
        assert!(config.contains("sendfile on;") && !config.contains("tcp_nopush"), "{config}");
    }

    #[test]
    fn a_directory_that_a_configuration_cannot_name_is_refused() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(nginx_command(true, Path::new("/a\"; load_module x;"), address).unwrap_err().is_usage_error());
    }
}
