//! `thalweg lab machine`: a command in a virtual PC of its own, with devices, an IOMMU and a kernel that may be
//! changed.

use crate::bench::{INTERRUPTED, stop_on_signals};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use thalweg::terminal::{Failure, Output, outlet, progress, progress::Busy};
use thalweg_lab::pc::{Iommu, Machine, Nic, Prepared, Progress, RunError, prepare_machine};
use thalweg_text::{ByteSize, format_volume, parse_duration};

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// A NIC: virtio, e1000e, vmxnet3 or igb, and the number of its wire (0). The first is at 0000:00:11.0, the next at
    /// 0000:00:12.0; those on one wire hear each other
    #[arg(long, value_name = "MODEL[@WIRE]", value_parser = nic)]
    nic: Vec<Nic>,
    /// QEMU's edu device, a small DMA engine, at 0000:00:10.0
    #[arg(long)]
    edu: bool,
    /// An entropy device (virtio-rng), which writes random numbers by DMA, at 0000:00:0f.0
    #[arg(long)]
    rng: bool,
    /// An empty NVMe disk of this size. The first is at 0000:00:18.0, the next at 0000:00:19.0
    #[arg(long, value_name = "SIZE")]
    nvme: Vec<ByteSize>,
    /// Without an IOMMU: devices reach all of memory, and VFIO is used in its no-IOMMU mode
    #[arg(long)]
    no_iommu: bool,
    /// Size of its memory
    #[arg(long, value_name = "SIZE", default_value_t = Machine::default().memory)]
    memory: ByteSize,
    /// Number of its processors
    #[arg(long, value_name = "NUMBER", default_value_t = Machine::default().processors)]
    processors: u32,
    /// Number of huge pages of 2 MiB that are reserved at the start
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    huge_pages: u32,
    /// End it after this time, the boot (about ten seconds) included
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = parse_duration)]
    timeout: Duration,
    /// Directory that the command sees as /out: what it writes there stays. The kernel's log is left there, too
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Command that runs there, as root. Without it: only set up what a machine boots from, and report what is there
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Parses `MODEL` or `MODEL@WIRE`.
fn nic(text: &str) -> Result<Nic, String> {
    let (model, wire) = text.split_once('@').unwrap_or((text, "0"));
    let model = model.parse().map_err(|error: thalweg_lab::pc::UnknownNic| error.to_string())?;
    let wire = wire.parse().map_err(|_| format!("'{wire}' is not the number of a cable"))?;
    Ok(Nic { model, wire })
}

/// Exit codes of a program that started another one, if the other one was not the cause: those of timeout(1) and
/// env(1).
const LATE: u8 = 124;
const NOT_RUN: u8 = 125;

pub(super) fn run_in_machine(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    let prepared = {
        let busy = Busy::new("laboratory".into());
        prepare_machine(|progress| busy.now(setup_progress_text(progress).into()))
    };
    if options.command.is_empty() {
        return print_machine(&prepared.map_err(Failure::broken)?, json);
    }
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return Ok(exit_without_outcome(NOT_RUN, &error)),
    };
    let stop = stop_on_signals()?.shared_flag();
    let kept;
    let out = match &options.out {
        Some(out) => out.as_path(),
        None => {
            kept = tempfile::tempdir().map_err(Failure::broken)?;
            kept.path()
        }
    };
    let machine = Machine {
        processors: options.processors,
        memory: options.memory,
        iommu: if options.no_iommu { Iommu::Off } else { Iommu::On },
        edu: options.edu,
        rng: options.rng,
        nics: options.nic.clone(),
        nvmes: options.nvme.clone(),
        huge_pages: options.huge_pages,
        timeout: options.timeout,
    };
    match machine.run_command(&prepared, &options.command, out, &stop) {
        Ok(outcome) => Ok(ExitCode::from(outcome.code)),
        Err(error @ (RunError::Machine(_) | RunError::Directory(_))) => Err(Failure::usage(error)),
        Err(RunError::Stopped) => Ok(ExitCode::from(INTERRUPTED)),
        Err(error @ RunError::Timeout { .. }) => Ok(exit_without_outcome(LATE, &error)),
        Err(error) => Ok(exit_without_outcome(NOT_RUN, &error)),
    }
}

fn exit_without_outcome(code: u8, error: &dyn std::error::Error) -> ExitCode {
    outlet::stderr().put_text(progress::error_text(&error.to_string()));
    ExitCode::from(code)
}

fn setup_progress_text(progress: Progress) -> &'static str {
    match progress {
        Progress::Waiting => "waiting for another process that sets up the machine",
        Progress::Downloading => "setting up the machine, once: downloading Debian's kernel and packages",
        Progress::Unpacking => "setting up the machine, once: unpacking packages",
        Progress::Compiling => "setting up the machine, once: compiling kernel modules",
    }
}

fn print_machine(prepared: &Prepared, json: bool) -> Result<ExitCode, Failure> {
    let (kernel, directory) = (prepared.kernel_version(), prepared.directory().display());
    let size = prepared.size_bytes().map_err(|error| Failure::Broken(format!("{directory}: {error}")))?;
    let mut output = Output::new();
    match json {
        true => {
            let directory = directory.to_string();
            output.json(&serde_json::json!({ "kernel": kernel, "directory": directory, "bytes": size }))?;
        }
        false => output.text(&format!("Linux {kernel}, kept in {directory} ({})\n", format_volume(size)))?,
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}
