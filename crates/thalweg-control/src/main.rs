//! The program `thalweg-control`, of which `thalweg control`, `thalweg ctl` and `thalweg top` are commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    thalweg_control::main()
}
