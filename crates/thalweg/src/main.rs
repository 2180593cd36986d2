//! The program `thalweg`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    thalweg::main()
}
