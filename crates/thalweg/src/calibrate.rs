//! `thalweg calibrate`: measures what the builders' links carry, and keeps the result for the runs that follow.

use crate::node;
use crate::terminal::{Failure, Output};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;
use thalweg_node::{KeptLink, forget_links, kept_links};
use thalweg_text::wrap_words;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The topology
    #[arg(required_unless_present_any = ["list", "forget"])]
    file: Option<PathBuf>,
    /// The node of this host. Every host of the topology runs its own at the same time
    node: Option<String>,
    /// List the measurements that are kept, with their dates
    #[arg(long, conflicts_with_all = ["file", "forget"])]
    list: bool,
    /// Delete the kept measurement of this address; without an address, all of them
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, conflicts_with = "file")]
    forget: Option<Option<String>>,
}

/// Runs a calibration: every source sends as much as it is asked for, and each builder asks for more and more until
/// something is lost. Or lists or deletes kept results.
pub(crate) fn run_calibrate(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    if options.list {
        return list_links(json);
    }
    if let Some(address) = &options.forget {
        return forget_measurements(address.as_deref(), json);
    }
    let file = options.file.as_deref().ok_or_else(|| Failure::Usage("name a topology".to_owned()))?;
    let topology = thalweg_node::Topology::load(file, None)?.into_calibration();
    match &options.node {
        Some(name) => node::run_single_node(&topology, name, node::Kind::Single, json),
        None => Err(Failure::Usage(format!(
            "name the node of this host: thalweg calibrate {} NODE, on each host at the same time. Between nodes of one \
             machine data go over its loopback, which has no link to measure; `thalweg lab incast --calibrate` rehearses it",
            file.display()
        ))),
    }
}

fn list_links(json: bool) -> Result<ExitCode, Failure> {
    let links = kept_links();
    let mut out = Output::new();
    match json {
        true => out.json(&serde_json::json!({ "links": links }))?,
        false if links.is_empty() => out.text("no measurement is kept\n")?,
        false => out.text(&links.iter().map(link_text).collect::<String>())?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn link_text(kept: &KeptLink) -> String {
    let KeptLink { address, file, link, measured } = kept;
    let round_trip = humantime::format_duration(link.round_trip);
    let mut out = format!("{address}: {}, {round_trip}, buffer {}, {}\n", link.rate, link.buffer, kept.date_text());
    if let Some(measured) = measured {
        let interface = measured.interface.as_deref().map(|name| {
            let mtu = measured.interface_mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
            format!("interface {name}{mtu}; ")
        });
        let sources = measured.sources.join(", ");
        let text = format!("{}Linux {}; sources {sources}", interface.unwrap_or_default(), measured.kernel);
        out.push_str(&wrap_words("  ", &text));
    }
    out.push_str(&wrap_words("  ", &format!("kept in {}", file.display())));
    let doubts = match kept.is_loopback() {
        true => vec![format!("not used: a loopback has no link; `thalweg calibrate --forget {address}` deletes it")],
        false => kept.doubts(SystemTime::now()),
    };
    doubts.iter().for_each(|doubt| out.push_str(&wrap_words("  warning: ", doubt)));
    out
}

fn forget_measurements(address: Option<&str>, json: bool) -> Result<ExitCode, Failure> {
    let deleted = forget_links(address)?;
    let mut out = Output::new();
    match json {
        true => out.json(&serde_json::json!({ "deleted": deleted }))?,
        false if deleted.is_empty() => out.text("no measurement was kept\n")?,
        false => out.text(&deleted.iter().map(|address| format!("deleted: {address}\n")).collect::<String>())?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
