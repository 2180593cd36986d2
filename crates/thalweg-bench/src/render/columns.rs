//! Columns shown for each instrument: the one place on which terminal, Markdown and HTML agree.

use crate::{Figures, Key, Point};
use thalweg_text::{format_number, format_size};

/// Column of an instrument's table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Name: the first line of its heading.
    pub name: &'static str,
    /// Unit, or the distinction from other columns of the same name: the second line.
    pub unit: &'static str,
    /// Width of a cell in a terminal, in characters.
    pub width: usize,
    cell: Cell,
}

#[derive(Debug, Clone, Copy)]
enum Cell {
    Size,
    /// First of these settings that the point has.
    Setting(&'static [&'static str]),
    Figure(fn(&Figures) -> Option<f64>),
    Spread,
}

impl Column {
    /// Returns the text of this column for a point, if it has any.
    pub fn cell_text(&self, point: &Point) -> Option<String> {
        match self.cell {
            Cell::Size => Some(format_size(point.key.size)),
            Cell::Setting(names) => names.iter().find_map(|name| point.key.settings.get(*name).cloned()),
            Cell::Figure(get) => get(&point.figures).map(format_number),
            Cell::Spread => (point.repeats.len() > 1).then(|| format_number(point.spread_percent)),
        }
    }

    /// Returns the heading in one line.
    pub fn heading_line(&self) -> String {
        format!("{} {}", self.name, self.unit).trim().to_owned()
    }

    /// Returns whether the column identifies points, rather than showing what was measured.
    pub fn identifies_points(&self) -> bool {
        matches!(self.cell, Cell::Size | Cell::Setting(_))
    }
}

/// Returns the columns of an instrument, in order. In a terminal they fit 80 characters, two spaces between them.
pub fn instrument_columns(instrument: &str) -> Vec<Column> {
    match instrument {
        "latency" => vec![SIZE, P50, P90, P99, P999, MAX, CPU_PROCESS, CPU_SYSTEM, SPREAD],
        "under-load" => vec![SIZE, OFFERED, ARRIVED, P50, P99, P999, MAX, LOSS, SPREAD],
        "build" => vec![SIZE, GBITS, EVENTS, COPIES, CPU_PROCESS, CPU_SYSTEM, CPU_COST, SPREAD],
        "packets" => vec![SIZE, OFFERED_RATE, PACKETS, GBITS, CPU_PROCESS, CPU_SYSTEM, CPU_COST, LOSS, SPREAD],
        "copy" => vec![SIZE, GBYTES, CPU_PROCESS, SPREAD],
        "dma" => vec![SIZE, GBITS, BLOCKS, CPU_PROCESS, CPU_COST, SPREAD],
        "file" => vec![SIZE, MBYTES, BLOCKS, P50, P99, MAX, CPU_PROCESS, CPU_SYSTEM, SPREAD],
        "pin" | "access" => vec![SIZE, MEAN, P50, P90, P99, MAX, SPREAD],
        "verbs" => vec![SIZE, OUTSTANDING, P50, P99, REQUESTS, GBITS, CPU_PROCESS, SPREAD],
        "serve" => vec![SERVER, SIZE, MBYTES, CPU_COST, P50_MS, P99_MS, PAGE_CACHE, SPREAD],
        "transfer" => vec![SIZE, MBYTES, CPU_SENDER, CPU_RECEIVER, CPU_COST, SPREAD],
        // Bandwidth, and instruments of later versions.
        _ => vec![SIZE, GBITS, LINE, COPIES, CALLS, CPU_PROCESS, CPU_SYSTEM, CPU_COST, LOSS, SPREAD],
    }
}

/// Returns the title of a group of points: link, method, and the settings that have no column of their own.
pub fn group_title(instrument: &str, key: &Key) -> String {
    let columns = instrument_columns(instrument);
    let mut out = format!("{} {}", key.link, key.method);
    for (name, value) in &key.settings {
        if !columns.iter().any(|column| matches!(column.cell, Cell::Setting(own) if own.contains(&name.as_str()))) {
            out.push_str(&format!(", {} {value}", name.replace('_', " ")));
        }
    }
    out
}

const fn new_column(name: &'static str, unit: &'static str, width: usize, cell: Cell) -> Column {
    Column { name, unit, width, cell }
}

const SIZE: Column = new_column("", "size", 8, Cell::Size);
const OFFERED: Column = new_column("", "offered", 8, Cell::Setting(&["load", "rate"]));
const OFFERED_RATE: Column = new_column("offered", "1/s", 9, Cell::Figure(|f| f.offered_per_second));
const PACKETS: Column = new_column("packets", "1/s", 9, Cell::Figure(|f| f.messages_per_second));
const ARRIVED: Column = new_column("arrived", "1/s", 9, Cell::Figure(|f| f.messages_per_second));
const P50: Column = new_column("p50", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.p50)));
const P90: Column = new_column("p90", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.p90)));
const P99: Column = new_column("p99", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.p99)));
const P999: Column = new_column("p99.9", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.p999)));
const MAX: Column = new_column("max", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.max)));
const MEAN: Column = new_column("mean", "µs", 7, Cell::Figure(|f| Some(f.latency_us?.mean)));
const GBITS: Column = new_column("", "Gbit/s", 6, Cell::Figure(|f| Some(f.goodput_bits_per_second? * 1e-9)));
const GBYTES: Column = new_column("", "GB/s", 6, Cell::Figure(|f| Some(f.goodput_bits_per_second? / 8e9)));
const MBYTES: Column = new_column("", "MB/s", 7, Cell::Figure(|f| Some(f.goodput_bits_per_second? / 8e6)));
const EVENTS: Column = new_column("events", "1/s", 9, Cell::Figure(|f| f.messages_per_second));
const BLOCKS: Column = new_column("blocks", "1/s", 9, Cell::Figure(|f| f.messages_per_second));
const REQUESTS: Column = new_column("requests", "1/s", 9, Cell::Figure(|f| f.messages_per_second));
const OUTSTANDING: Column = new_column("out-", "standing", 8, Cell::Setting(&["outstanding"]));
const LINE: Column = new_column("line", "%", 4, Cell::Figure(|f| f.percent_of_line_rate));
const COPIES: Column = new_column("copies", "/byte", 6, Cell::Figure(|f| f.copies_per_byte));
const CALLS: Column = new_column("calls", "/MB", 9, Cell::Figure(|f| f.system_calls_per_megabyte));
const CPU_PROCESS: Column = new_column("CPU %", "process", 7, Cell::Figure(|f| Some(f.cpu?.process_percent)));
const CPU_SYSTEM: Column = new_column("CPU %", "system", 6, Cell::Figure(|f| Some(f.cpu?.system_percent)));
const CPU_COST: Column = new_column("CPU", "s/GB", 5, Cell::Figure(|f| f.cpu?.seconds_per_gigabyte));
const CPU_SENDER: Column = new_column("CPU %", "sender", 6, Cell::Figure(|f| f.cpu?.sender_percent));
const CPU_RECEIVER: Column = new_column("CPU %", "recvr", 6, Cell::Figure(|f| f.cpu?.receiver_percent));
const SERVER: Column = new_column("", "server", 17, Cell::Setting(&["server"]));
const P50_MS: Column = new_column("p50", "ms", 6, Cell::Figure(|f| Some(f.latency_us?.p50 / 1e3)));
const P99_MS: Column = new_column("p99", "ms", 6, Cell::Figure(|f| Some(f.latency_us?.p99 / 1e3)));
const PAGE_CACHE: Column =
    new_column("cached", "MiB", 6, Cell::Figure(|f| Some(f.page_cache_bytes? / f64::from(1 << 20))));
const LOSS: Column = new_column("loss", "%", 5, Cell::Figure(|f| Some(f.loss?.lost_percent())));
const SPREAD: Column = new_column("spread", "%", 6, Cell::Spread);

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_text::TEXT_COLUMNS;

    #[test]
    fn every_table_fits_a_terminal() {
        for instrument in [
            "latency",
            "bandwidth",
            "packets",
            "under-load",
            "build",
            "copy",
            "dma",
            "file",
            "serve",
            "transfer",
            "pin",
            "access",
            "verbs",
            "?",
        ] {
            let widths: usize = instrument_columns(instrument).iter().map(|column| column.width + 2).sum();
            assert!(widths - 2 <= TEXT_COLUMNS, "{instrument}: {widths}");
        }
    }

    #[test]
    fn a_setting_with_a_column_is_not_repeated() {
        let key = Key::new("tcp", "write", 1).with_setting("rate", "1000").with_setting("socket_buffer", "64 KiB");
        assert_eq!(group_title("under-load", &key), "tcp write, socket buffer 64 KiB");
        assert_eq!(group_title("latency", &key), "tcp write, rate 1000, socket buffer 64 KiB");
    }
}
