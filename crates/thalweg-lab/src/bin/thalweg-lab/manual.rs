//! The sections of thalweg-lab(1) beyond its commands and options.

use thalweg::terminal::generate::Manual;

pub(crate) const MANUAL: Manual = Manual {
    sections: &[
        (
            "EXAMPLES",
            "\
Measure latency and bandwidth between two processes of this host, over TCP and shared memory:

  $ thalweg bench latency --link tcp,shm --sizes 1,64K
  $ thalweg bench bandwidth --link tcp,shm --sizes 64K --html-file bandwidth.html

Between two hosts:

  adc-0$ thalweg bench listen 10.0.0.2 --one-off
  builder$ thalweg bench bandwidth --peer 10.0.0.2 --link tcp,udp --sizes 64K

Rehearse eight senders into one receiver at 10 Gbit/s, simulated, before the hardware is bought:

  $ thalweg lab incast --on model --senders 8 --rate 10G --buffer 1M

Rehearse the readout of two cameras without cameras:

  $ thalweg-lab camera --rate 60 camera-0.npy camera-1.npy &
  $ thalweg devices",
        ),
        (
            "EXIT STATUS",
            "\
0\tThe command succeeded; for bench: every point was measured.

1\tThe command failed while running: a measurement failed, a file could not be written, or compare --fail-above found \
a point that got worse.

2\tThe command cannot be executed: wrong command line or file, or something that is missing on this machine.

130\tThe command was interrupted.",
        ),
        (
            "FILES",
            "\
~/.cache/thalweg\tKernels, machines and sources that the laboratories build or download once.

/usr/share/doc/thalweg/html/lab.html\tThe reference of scenarios and laboratories; bench.html, of the instruments.",
        ),
        (
            "ENVIRONMENT",
            "\
THALWEG_NS3\tThe prefix in which ns-3 is installed, with include/ns3 and lib.

TMPDIR\tThe directory for the memory of virtual machines.

XDG_CACHE_HOME\tThe directory for caches, instead of ~/.cache.",
        ),
    ],
    see_also: &["thalweg(1)", "thalweg-topology(5)", "iperf3(1)", "fio(1)", "tc(8)"],
    bash_lines: "",
};
