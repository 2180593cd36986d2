//! The program `thalweg-control`, of which `thalweg control` and `thalweg ctl` are commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    thalweg_control::main()
}
