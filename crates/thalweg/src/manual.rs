//! The sections of thalweg(1) beyond its commands and options.

use crate::terminal::generate::Manual;

pub(crate) const MANUAL: Manual = Manual {
    sections: &[
        (
            "EXAMPLES",
            "\
Record a run of four simulated digitizers over TCP, and check it:

  $ thalweg demo --sources 4 --size 64KiB --duration 5s
  $ thalweg verify runs/run-000001
  $ thalweg cat runs/run-000001 --event 7 --data 8

Record a run described by a file, such as an example that comes with the package:

  $ cp -r /usr/share/doc/thalweg/examples .
  $ thalweg check examples/one-host.toml
  $ thalweg run examples/one-host.toml

Before a run, find out what on this machine would lose data at 800 MB/s:

  $ thalweg doctor --directory /data/runs --rate 800MB/s --measure-disk

Serve the runs of a directory, and fetch one of them on another host, also while it is recorded:

  $ thalweg serve runs --listen 10.0.0.1:8042 --open
  $ thalweg pull http://10.0.0.1:8042/runs/1 --follow",
        ),
        (
            "EXIT STATUS",
            "\
0\tThe command succeeded. For a run: it is COMPLETE. For verify: the run is intact and COMPLETE.

1\tThe command failed while running. For a run: it is INCOMPLETE. For verify: the run is damaged, INCOMPLETE or OPEN.

2\tThe command cannot be executed: wrong command line or topology; missing device, directory, address, memory or disk \
space; no such run.

3, 4\tOf doctor: something could be better; something would lose data, or cannot run.

130\tThe command was interrupted (pull, push, bench).",
        ),
        (
            "FILES",
            "\
runs/run-NNNNNN\tThe directory of a run. Runs are recorded in the directory of the topology (run.directory), or in runs.

~/.local/state/thalweg/links\tCapacities of links that calibrate has measured, used by later runs.

~/.local/state/thalweg/serve\tMeasurements by which serve selects its method of sending.

/etc/thalweg/topology.toml\tThe topology of the systemd unit thalweg-node@NODE.

/var/lib/thalweg/runs\tThe runs of the systemd units thalweg-node@NODE and thalweg-serve.

/usr/share/doc/thalweg/html/index.html\tThe documentation: tutorial, recipes, reference of all files and formats.

/usr/share/doc/thalweg/examples\tExample topologies and Python programs.",
        ),
        (
            "ENVIRONMENT",
            "\
THALWEG_TOKEN\tThe token for a data server, unless --token-file is given.

THALWEG_LOG\tThe level of the log (error, warn, info, debug, trace), also for single crates, such as \
thalweg_node=debug.

THALWEG_LOG_FORMAT\tThe format of the log: text, or json: one object on a line, with time, level, message, node, run, and \
event where there is one.

XDG_STATE_HOME\tThe directory for state, instead of ~/.local/state.

NO_COLOR, CLICOLOR, CLICOLOR_FORCE\tWhether text is coloured, unless --color is given.",
        ),
        (
            "UNITS",
            "\
Sizes: 4096, 64K or 64KiB (powers of 1024), 64kB (powers of 1000). Rates: 800MB/s, 10Gbit/s. Times: 10s, 1.5s, 500ms, \
100us, 2m; a number alone is in seconds. thalweg-topology(5) has all forms.",
        ),
    ],
    see_also: &[
        "thalweg-topology(5)",
        "thalweg-lab(1)",
        "thalweg-control(1)",
        "/usr/share/doc/thalweg/html/index.html",
    ],
    bash_lines: INSTRUMENTS,
};

/// Completion in bash of commands of the programs beside this one: by the completions of those, which are beside these.
const INSTRUMENTS: &str = r#"
_thalweg_with_instruments() {
    case "${COMP_CWORD}:${COMP_WORDS[1]}" in
        1:*) _thalweg "$@" ;;
        *:bench|*:cc|*:lab|*:reproduce)
            declare -F _thalweg__lab > /dev/null || source "${BASH_SOURCE[0]%/*}/thalweg-lab"
            COMP_WORDS[0]=thalweg-lab
            _thalweg__lab thalweg-lab "$2" "$3"
            ;;
        *:control|*:ctl|*:top)
            declare -F _thalweg__control > /dev/null || source "${BASH_SOURCE[0]%/*}/thalweg-control"
            COMP_WORDS[0]=thalweg-control
            _thalweg__control thalweg-control "$2" "$3"
            ;;
        *) _thalweg "$@" ;;
    esac
}
complete -F _thalweg_with_instruments -o bashdefault -o default thalweg
"#;
