//! Congestion controls for an event builder (Nagasaka and Oki, 2012), with credits beside them: tables beside the
//! paper's, findings and whether they hold.

mod findings;
mod paper;
#[cfg(test)]
mod tests;

use crate::sweep::Results;
use crate::sweep::heat::{Scale, Tile, draw_heat_map, heat_map_figure};
use thalweg_bench::reproduce::{Finding, Table};

/// Returns tables, findings, and pictures (HTML) from the results of the file's sweeps.
pub(super) fn conclusions(measured: [&Results; 4]) -> (Vec<Table>, Vec<Finding>, String) {
    (findings::build_tables(measured), findings::evaluate_findings(measured), difference_maps(measured[1]))
}

/// Draws the paper's figures 5 and 6 as heat maps: Vegas minus BIC over interval and delay, for each number of senders.
fn difference_maps(results: &Results) -> String {
    let mut out = "<h2>Simulated: Vegas minus BIC in Mbit/s</h2>\n<div class=\"maps\">\n".to_owned();
    let [intervals, delays] = findings::surface_axes(results);
    for senders in paper::SENDERS {
        let values = findings::difference_surface(results, senders);
        if values.iter().flatten().all(Option::is_none) {
            continue;
        }
        let tiles: Vec<Vec<Tile>> =
            values.iter().map(|row| row.iter().copied().map(difference_tile).collect()).collect();
        let map = draw_heat_map("interval \\ delay", intervals, delays, &tiles, Scale::Around { most: 700.0 });
        out.push_str(&heat_map_figure(&format!("{senders} to 1"), &map));
    }
    out + "</div>\n"
}

fn difference_tile(value: Option<f64>) -> Tile {
    Tile { value, text: value.map_or("-".into(), |value| format!("{value:+.1}")), marked: false }
}
