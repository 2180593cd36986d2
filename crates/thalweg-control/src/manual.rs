//! The sections of thalweg-control(1) beyond its commands and options.

use thalweg::terminal::generate::Manual;

pub(crate) const MANUAL: Manual = Manual {
    sections: &[
        (
            "EXAMPLES",
            "\
Start the run control of an experiment, and open the page that it names:

  $ thalweg control lab.toml

Take a run from another terminal:

  $ thalweg ctl configure
  $ thalweg ctl arm
  $ thalweg ctl start --note 'first beam'
  $ thalweg ctl status
  $ thalweg ctl stop

See it, and command it by keys, in a terminal:

  $ thalweg top

Wait in a script until a run can start, and start a node on another host:

  $ thalweg ctl status --until armed --timeout 2min
  adc-1$ THALWEG_CONTROL_TOKEN=... thalweg node adc-1 --control http://daq-0:8400",
        ),
        (
            "EXIT STATUS",
            "\
0\tThe command succeeded.

1\tThe service refused it, or it failed; the reason is on standard error.

2\tThe command cannot be executed: wrong command line or topology, no service, no right to it, no terminal.

130\tA signal has ended top.",
        ),
        (
            "FILES",
            "\
runs/.control/tokens.toml\tNames, roles and secrets of those who may use the service.

runs/.control/runs.jsonl\tRecords of all runs.

runs/.control/audit.jsonl\tAll requests that change something.

runs/.control/log/NODE.log\tOutput of the nodes that the service has started.

~/.local/state/thalweg/service.json\tAddress and token of this user's last service, which thalweg ctl and thalweg top use.",
        ),
        (
            "ENVIRONMENT",
            "\
THALWEG_CONTROL_URL\tThe address of the service, unless --url is given.

THALWEG_CONTROL_TOKEN\tThe token for it; that of a node for thalweg node --control.

NO_COLOR, CLICOLOR, CLICOLOR_FORCE\tWhether top has colors, unless --color is given.",
        ),
    ],
    see_also: &["thalweg(1)", "thalweg-topology(5)"],
    bash_lines: "",
};
