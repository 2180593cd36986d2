//! An RNIC as a process of its own, which serves all programs that may write to its socket:
//! `cargo run --release -p thalweg-rnic --example serve -- PATH`.

use std::error::Error;
use std::path::PathBuf;
use thalweg_rnic::{Limits, Service};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from).ok_or("usage: serve PATH, where PATH does not exist")?;
    let mut service = Service::listen(&path, Limits::default())?;
    println!("the RNIC's socket is {}", path.display());
    Ok(service.serve_programs()?)
}
