//! Table of the peers and of the pairings.
//!
//! Words in braces are replaced when a turn begins: `{port}` and `{port2}` are free ports, `{time}` is the duration of
//! a turn and `{seconds}` the same in whole seconds, `{count}` the pairing's `per_second` times that, `{directory}` a
//! directory that is deleted afterwards, `{most}` half of the bytes that are free there, and `{congestion}` the
//! congestion control of connections that do not choose one.

use super::parse::{self, Parser};
use super::program::Transport;

/// Program to compare with.
#[derive(Debug)]
pub(super) struct Peer {
    /// Name, as `--only` takes it.
    pub(super) name: &'static str,
    /// Origin of the program.
    pub(super) origin: Origin,
    /// Programs with which its commands begin.
    pub(super) programs: &'static [&'static str],
    /// Command that prints its version.
    pub(super) version: &'static str,
    /// Whether it can be made to listen on loopback alone, or does not listen at all.
    pub(super) loopback_only: bool,
}

/// Origin of a peer.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// Debian package.
    Debian(&'static str),
    /// Package of PyPI, put into a virtual environment.
    Pip(&'static str),
    /// C source of ours, compiled with a library of a Debian package.
    Source {
        /// Text of the source.
        text: &'static str,
        /// Linker option: `-l…`
        library: &'static str,
        /// Debian package of the library.
        package: &'static str,
    },
}

/// One piece of work that both sides do.
#[derive(Debug)]
pub(super) struct Row {
    /// Name, as `--only` takes it.
    pub(super) name: &'static str,
    /// Peer that does it.
    pub(super) peer: &'static Peer,
    /// Description of the work.
    pub(super) work: &'static str,
    /// Environment of both of the peer's ends: `NAME=VALUE`.
    pub(super) environment: &'static [&'static str],
    /// Command that is started first and must listen on `{port}`.
    pub(super) server: Server,
    /// Command that prints the figure, or does all the work.
    pub(super) client: &'static str,
    /// Rough number of iterations per second, for a peer that takes a count instead of a time.
    pub(super) per_second: u32,
    /// Parser of the output of `client`.
    pub(super) parse: Parser,
    /// Words of `thalweg bench` that do the same.
    pub(super) ours: &'static str,
    /// Compared figure.
    pub(super) figure: Figure,
    /// Remark on the ratio.
    pub(super) note: &'static str,
    /// Whether to take only one turn: the program takes long, since it searches for its figure.
    pub(super) once: bool,
    /// Whether each end is one thread and gets a processor of its own, the same for both sides.
    pub(super) bound: bool,
}

impl Row {
    /// Returns whether this is the name of the row or of its peer.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.name == name || self.peer.name == name
    }
}

/// End that is started first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Server {
    /// No server.
    None,
    /// Server that ends after one client.
    Once(&'static str, Transport),
    /// Server that is ended after its client.
    Lasting(&'static str, Transport),
}

/// Compared figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    Goodput,
    Messages,
    MedianLatency,
    MeanLatency,
}

impl Figure {
    /// Returns its name, its unit, and the factor from the parsers' unit to this one.
    pub(super) fn name_unit_and_factor(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::Goodput => ("goodput", "Gbit/s", 1e9),
            Self::Messages => ("messages", "1/s", 1.0),
            Self::MedianLatency => ("half a round trip, median", "µs", 1.0),
            Self::MeanLatency => ("half a round trip, mean", "µs", 1.0),
        }
    }

    pub(super) fn higher_is_better(self) -> bool {
        matches!(self, Self::Goodput | Self::Messages)
    }
}

pub(super) const PEERS: [&Peer; 9] = [&IPERF3, &NUTTCP, &QPERF, &SOCKPERF, &UCX, &LIBFABRIC, &LIBZMQ, &FIO, &SPEAD2];

const IPERF3: Peer = debian_peer("iperf3", "iperf3", &["iperf3"], "iperf3 --version", true);
const NUTTCP: Peer = debian_peer("nuttcp", "nuttcp", &["nuttcp"], "nuttcp -V", false);
const QPERF: Peer = debian_peer("qperf", "qperf", &["qperf"], "qperf --version", false);
const SOCKPERF: Peer = debian_peer("sockperf", "sockperf", &["sockperf"], "sockperf --version", true);
const UCX: Peer = debian_peer("ucx", "ucx-utils", &["ucx_perftest", "ucx_info"], "ucx_info -v", false);
const LIBFABRIC: Peer =
    debian_peer("libfabric", "libfabric-bin", &["fi_pingpong", "fi_info"], "fi_info --version", false);
const FIO: Peer = debian_peer("fio", "fio", &["fio"], "fio --version", true);
const LIBZMQ: Peer = Peer {
    name: "libzmq",
    origin: Origin::Source {
        text: include_str!("../../peers/zmq_push_pull.c"),
        library: "-lzmq",
        package: "libzmq3-dev",
    },
    programs: &["zmq_push_pull"],
    version: "zmq_push_pull --version",
    loopback_only: true,
};
const SPEAD2: Peer = Peer {
    name: "spead2",
    origin: Origin::Pip("spead2"),
    programs: &["spead2_bench.py"],
    version: "pip show spead2",
    loopback_only: false,
};

const fn debian_peer(
    name: &'static str,
    package: &'static str,
    programs: &'static [&'static str],
    version: &'static str,
    loopback_only: bool,
) -> Peer {
    Peer { name, origin: Origin::Debian(package), programs, version, loopback_only }
}

const TCP: Transport = Transport::Tcp;

/// Iterations, where a peer counts them, take about this long on a machine of two cores; a slower one takes longer.
pub(super) const ROWS: &[Row] = &[
    Row {
        name: "iperf3-128k",
        work: "one TCP stream, writes of 128 KiB",
        client: "iperf3 -c 127.0.0.1 -p {port} -l 128K -C cubic -t {seconds} --json",
        ours: "bandwidth --link tcp --method write --sizes 128KiB -C cubic",
        bound: true,
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-1m",
        work: "one TCP stream, writes of 1 MiB",
        client: "iperf3 -c 127.0.0.1 -p {port} -l 1M -C cubic -t {seconds} --json",
        ours: "bandwidth --link tcp --method write --sizes 1MiB -C cubic",
        bound: true,
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-sendfile",
        work: "one TCP stream, sendfile of 128 KiB",
        client: "iperf3 -c 127.0.0.1 -p {port} -Z -l 128K -C cubic -t {seconds} --json",
        ours: "bandwidth --link tcp --method sendfile --sizes 128KiB -C cubic",
        note: "iperf3 -Z sends the same piece of a file in /tmp again and again, from the page cache; ours a memfd's. The \
               receiver's processor time counts",
        bound: true,
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-udp",
        work: "one UDP sender as fast as it can, datagrams of 32 KiB",
        client: "iperf3 -u -b 0 -c 127.0.0.1 -p {port} -l 32K -t {seconds} --json",
        ours: "build --sources 1 --link udp --sizes 1MiB",
        note: "what came: iperf3 loses the rest, ours loses nothing, and checks and builds events",
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-3to1",
        work: "3 sources to 1 over TCP, 1 MiB each time",
        client: "iperf3 -c 127.0.0.1 -p {port} -P 3 -l 1M -C cubic -t {seconds} --json",
        ours: "build --sources 3 --link tcp --sizes 1MiB -C cubic",
        note: EVENTS,
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-3to1-default",
        work: "3 sources to 1 over TCP, as both come",
        client: "iperf3 -c 127.0.0.1 -p {port} -P 3 -Z -l 1M -t {seconds} --json",
        ours: "build --sources 3 --link tcp --sizes 1MiB",
        note: "iperf3 with the system's congestion control, as people run it; ours with its own default, cubic",
        ..IPERF3_ROW
    },
    Row {
        name: "iperf3-3to1-sendfile",
        work: "3 sources to 1 over TCP, sendfile of 1 MiB each time",
        client: "iperf3 -c 127.0.0.1 -p {port} -P 3 -Z -l 1M -C cubic -t {seconds} --json",
        ours: "build --sources 3 --link tcp --sizes 1MiB -C cubic",
        note: EVENTS,
        ..IPERF3_ROW
    },
    Row {
        name: "nuttcp-128k",
        peer: &NUTTCP,
        work: "one TCP stream, writes of 128 KiB",
        server: Server::Once("nuttcp -1 --nofork -P {port} -p {port2}", TCP),
        client: "nuttcp -t -T{seconds} -l128k -fparse -P {port} -p {port2} 127.0.0.1",
        parse: parse::parse_nuttcp,
        ours: "bandwidth --link tcp --method write --sizes 128KiB -C {congestion}",
        note: "nuttcp takes the system's congestion control, and so does ours; its rate is the receiver's",
        bound: true,
        ..PLAIN
    },
    Row {
        name: "qperf-tcp-latency",
        work: "TCP ping-pong of 1 byte",
        client: "qperf 127.0.0.1 -lp {port} -ip {port2} -t {seconds} -m 1 -uu -e 6 tcp_lat",
        ours: "latency --link tcp --method write --sizes 1 -C {congestion}",
        bound: true,
        ..QPERF_ROW
    },
    Row {
        name: "qperf-udp-latency",
        work: "UDP ping-pong of 1 byte",
        client: "qperf 127.0.0.1 -lp {port} -ip {port2} -t {seconds} -m 1 -uu -e 6 udp_lat",
        ours: "latency --link udp --method write --sizes 1",
        bound: true,
        ..QPERF_ROW
    },
    Row {
        name: "qperf-tcp-128k",
        work: "one TCP stream, writes of 128 KiB",
        client: "qperf 127.0.0.1 -lp {port} -ip {port2} -t {seconds} -m 128K -uu -ub -e 6 tcp_bw",
        parse: parse::parse_qperf_bandwidth,
        ours: "bandwidth --link tcp --method write --sizes 128KiB -C {congestion}",
        figure: Figure::Goodput,
        note: "qperf's rate is the receiver's; it takes the system's congestion control, and so does ours",
        bound: true,
        ..QPERF_ROW
    },
    Row {
        name: "sockperf-tcp",
        work: "TCP ping-pong of 14 bytes",
        server: Server::Lasting("sockperf server --tcp -i 127.0.0.1 -p {port}", TCP),
        client: "sockperf ping-pong --tcp -i 127.0.0.1 -p {port} -m 14 -t {seconds}",
        ours: "latency --link tcp --method write --sizes 14 -C {congestion}",
        bound: true,
        ..SOCKPERF_ROW
    },
    Row {
        name: "sockperf-udp",
        work: "UDP ping-pong of 14 bytes",
        server: Server::Lasting("sockperf server -i 127.0.0.1 -p {port}", Transport::Udp),
        client: "sockperf ping-pong -i 127.0.0.1 -p {port} -m 14 -t {seconds}",
        ours: "latency --link udp --method write --sizes 14",
        bound: true,
        ..SOCKPERF_ROW
    },
    Row {
        name: "ucx-shm-tag",
        work: "ping-pong of 1 byte over shared memory, matched by tag",
        environment: &["UCX_TLS=sm"],
        client: "ucx_perftest 127.0.0.1 -p {port} -t tag_lat -s 1 -n {count} -f",
        per_second: 1_000_000,
        ours: "latency --link shm --sizes 1",
        bound: true,
        ..UCX_ROW
    },
    Row {
        name: "ucx-shm-am",
        work: "ping-pong of 1 byte over shared memory, active messages",
        environment: &["UCX_TLS=sm"],
        client: "ucx_perftest 127.0.0.1 -p {port} -t ucp_am_lat -s 1 -n {count} -f",
        per_second: 1_000_000,
        ours: "latency --link shm --sizes 1",
        bound: true,
        ..UCX_ROW
    },
    Row {
        name: "ucx-tcp-tag",
        work: "TCP ping-pong of 1 byte, without sleeping",
        environment: &["UCX_TLS=tcp"],
        client: "ucx_perftest 127.0.0.1 -p {port} -t tag_lat -s 1 -n {count} -f",
        per_second: 50_000,
        ours: "latency --link tcp --method write --wait poll --sizes 1 -C {congestion}",
        bound: true,
        ..UCX_ROW
    },
    Row {
        name: "ucx-shm-128k",
        work: "128 KiB at a time over shared memory",
        environment: &["UCX_TLS=sm"],
        client: "ucx_perftest 127.0.0.1 -p {port} -t tag_bw -s 131072 -n {count} -f",
        per_second: 30_000,
        parse: parse::parse_ucx_bandwidth,
        ours: "bandwidth --link shm --method copy --sizes 128KiB",
        figure: Figure::Goodput,
        note: "UCX chooses how: where the kernel lets it read another process's memory (cma), one copy; ours copies in \
               and out. Over the whole test, at the sender; both of its ends poll",
        bound: true,
        ..UCX_ROW
    },
    Row {
        name: "ucx-tcp-128k",
        work: "128 KiB at a time over TCP",
        environment: &["UCX_TLS=tcp"],
        client: "ucx_perftest 127.0.0.1 -p {port} -t tag_bw -s 131072 -n {count} -f",
        per_second: 10_000,
        parse: parse::parse_ucx_bandwidth,
        ours: "bandwidth --link tcp --method write --sizes 128KiB -C {congestion}",
        figure: Figure::Goodput,
        note: "over the whole test, at the sender; both ends of UCX poll, ours sleep",
        bound: true,
        ..UCX_ROW
    },
    Row {
        name: "libfabric-shm",
        work: "ping-pong of 1 byte over shared memory",
        server: Server::Once("fi_pingpong -B {port} -p shm -e rdm -S 1 -I {count}", TCP),
        client: "fi_pingpong -P {port} -p shm -e rdm -S 1 -I {count} 127.0.0.1",
        ours: "latency --link shm --sizes 1",
        bound: true,
        ..LIBFABRIC_ROW
    },
    Row {
        name: "libfabric-tcp",
        work: "TCP ping-pong of 1 byte, without sleeping",
        server: Server::Once("fi_pingpong -B {port} -p tcp -e msg -S 1 -I {count}", TCP),
        client: "fi_pingpong -P {port} -p tcp -e msg -S 1 -I {count} 127.0.0.1",
        ours: "latency --link tcp --method write --wait poll --sizes 1 -C {congestion}",
        bound: true,
        ..LIBFABRIC_ROW
    },
    Row {
        name: "libzmq-1k",
        work: "3 sources to 1 over TCP, messages of 1 KiB",
        client: "zmq_push_pull 3 1024 {seconds} 1 tcp://127.0.0.1:*",
        ours: "build --sources 3 --link tcp --sizes 1KiB -C {congestion}",
        ..LIBZMQ_ROW
    },
    Row {
        name: "libzmq-1k-2io",
        work: "3 sources to 1 over TCP, messages of 1 KiB, two IO threads at the receiver",
        client: "zmq_push_pull 3 1024 {seconds} 2 tcp://127.0.0.1:*",
        ours: "build --sources 3 --link tcp --sizes 1KiB -C {congestion}",
        ..LIBZMQ_ROW
    },
    Row {
        name: "libzmq-64k",
        work: "3 sources to 1 over TCP, messages of 64 KiB",
        client: "zmq_push_pull 3 65536 {seconds} 1 tcp://127.0.0.1:*",
        ours: "build --sources 3 --link tcp --sizes 64KiB -C {congestion}",
        ..LIBZMQ_ROW
    },
    Row {
        name: "libzmq-64k-2io",
        work: "3 sources to 1 over TCP, messages of 64 KiB, two IO threads at the receiver",
        client: "zmq_push_pull 3 65536 {seconds} 2 tcp://127.0.0.1:*",
        ours: "build --sources 3 --link tcp --sizes 64KiB -C {congestion}",
        ..LIBZMQ_ROW
    },
    Row {
        name: "libzmq-1m",
        work: "3 sources to 1 over TCP, messages of 1 MiB",
        client: "zmq_push_pull 3 1048576 {seconds} 1 tcp://127.0.0.1:*",
        parse: parse::parse_zmq_goodput,
        ours: "build --sources 3 --link tcp --sizes 1MiB -C {congestion}",
        figure: Figure::Goodput,
        ..LIBZMQ_ROW
    },
    Row {
        name: "libzmq-ipc-64k",
        work: "3 sources to 1 on one host, messages of 64 KiB",
        client: "zmq_push_pull 3 65536 {seconds} 1 ipc://@thalweg-peers-{port}",
        ours: "build --sources 3 --link shm --sizes 64KiB",
        note: "libzmq's way within a host is a Unix socket, ours is shared memory: nothing is copied. An event builder also \
               checks each fragment's header, puts events together and keeps books",
        ..LIBZMQ_ROW
    },
    Row {
        name: "fio-read",
        work: "sequential direct reads of 1 MiB, 32 under way",
        client: "fio --name=peer --directory={directory} --rw=read --bs=1M --size=1G --direct=1 --ioengine=io_uring --iodepth=32 --fixedbufs --registerfiles \
                 --runtime={seconds} --time_based --thread --output-format=json",
        ours: "file --path {directory} --method io_uring --depth 32 --direction read --sizes 1MiB",
        ..FIO_ROW
    },
    Row {
        name: "fio-read-psync",
        work: "sequential direct reads of 1 MiB, one after the other",
        client: "fio --name=peer --directory={directory} --rw=read --bs=1M --size=1G --direct=1 --ioengine=psync \
                 --runtime={seconds} --time_based --thread --output-format=json",
        ours: "file --path {directory} --method direct --direction read --sizes 1MiB",
        ..FIO_ROW
    },
    Row {
        name: "fio-write",
        work: "sequential direct writes of 1 MiB, 32 under way",
        client: "fio --name=peer --directory={directory} --rw=write --bs=1M --size=1G --direct=1 --ioengine=io_uring --iodepth=32 --fixedbufs --registerfiles \
                 --runtime={seconds} --time_based --thread --output-format=json",
        ours: "file --path {directory} --method io_uring --depth 32 --direction write --sizes 1MiB",
        ..FIO_ROW
    },
    Row {
        name: "fio-write-psync",
        work: "sequential direct writes of 1 MiB, one after the other",
        client: "fio --name=peer --directory={directory} --rw=write --bs=1M --size=1G --direct=1 --ioengine=psync \
                 --runtime={seconds} --time_based --thread --output-format=json",
        ours: "file --path {directory} --method direct --direction write --sizes 1MiB",
        ..FIO_ROW
    },
    Row {
        name: "fio-record",
        work: "recording fragments of 1 MiB that come through shared memory: new files, written past the page cache",
        client: FIO_RECORD,
        ours: "build --sources 3 --link shm --sizes 1MiB --record {directory}",
        note: RECORDED,
        ..FIO_ROW
    },
    Row {
        name: "fio-record-tcp",
        work: "recording fragments of 64 KiB that come over TCP: new files, written past the page cache",
        client: FIO_RECORD,
        ours: "build --sources 3 --link tcp --sizes 64KiB -C cubic --record {directory}",
        note: RECORDED,
        ..FIO_ROW
    },
    Row {
        name: "spead2",
        peer: &SPEAD2,
        work: "1 source to 1, 1 MiB at a time without loss",
        server: Server::Lasting("spead2_bench.py agent {port}", TCP),
        client: "spead2_bench.py master --heap-size 1048576 --packet 9000 127.0.0.1:{port}",
        parse: parse::parse_spead2,
        ours: "build --sources 1 --link udp --sizes 1MiB",
        note: "spead2 sends UDP packets of 9000 bytes and searches for the highest rate at which no heap is lost, to 2 %; \
               ours asks for what is lost again, and checks and builds events. It takes about a minute, and is taken once",
        once: true,
        ..PLAIN
    },
];

/// Defaults of the fields that a row does not set.
const PLAIN: Row = Row {
    name: "",
    peer: &IPERF3,
    work: "",
    environment: &[],
    server: Server::None,
    client: "",
    per_second: 0,
    parse: parse::parse_iperf3,
    ours: "",
    figure: Figure::Goodput,
    note: "",
    once: false,
    bound: false,
};

const EVENTS: &str = "an event builder also checks each fragment's header, puts events together and keeps books; its sources \
                      are processes, iperf3's are streams of one process in one thread";

const FIO_RECORD: &str = "fio --name=peer --directory={directory} --rw=write --bs=4M --size={most} --direct=1 \
                          --ioengine=io_uring --iodepth=4 --end_fsync=1 --runtime={seconds} --unlink=1 --thread \
                          --output-format=json";

const RECORDED: &str = "fio writes blocks of the recorder's size into a file that it has set space aside for; the recorder's \
                        hold built events, with headers and an index. Both for as long, with an fsync at the end";

const IPERF3_ROW: Row = Row {
    server: Server::Once("iperf3 -s -1 -B 127.0.0.1 -p {port} --json", TCP),
    note: "bytes that iperf3's receiver counted, in the sender's time; both ends are one thread each, and both sleep",
    ..PLAIN
};

const QPERF_ROW: Row = Row {
    peer: &QPERF,
    server: Server::Lasting("qperf -lp {port}", TCP),
    parse: parse::parse_qperf_latency,
    figure: Figure::MeanLatency,
    note: "qperf says only the mean: half of the time for a message there and one as long back; both ends sleep",
    ..PLAIN
};

const SOCKPERF_ROW: Row = Row {
    peer: &SOCKPERF,
    parse: parse::parse_sockperf,
    figure: Figure::MedianLatency,
    note: "half a round trip by the client's clock; 14 bytes is sockperf's shortest message. Its first 400 ms and last 50 ms \
           do not count; both ends sleep in recvfrom",
    ..PLAIN
};

const UCX_ROW: Row = Row {
    peer: &UCX,
    server: Server::Once("ucx_perftest -p {port}", TCP),
    parse: parse::parse_ucx_latency,
    figure: Figure::MedianLatency,
    note: "half a round trip by the client's clock; its median is that of the last 2048 of them. Both ends poll, \
           so each needs a processor to itself",
    ..PLAIN
};

const LIBFABRIC_ROW: Row = Row {
    peer: &LIBFABRIC,
    per_second: 20_000,
    parse: parse::parse_fi_pingpong,
    figure: Figure::MeanLatency,
    note: "fi_pingpong says only the mean of half a round trip, by the client's clock and to 0.01 µs. Both ends poll, so \
           each needs a processor to itself",
    ..PLAIN
};

const LIBZMQ_ROW: Row = Row {
    peer: &LIBZMQ,
    parse: parse::parse_zmq_messages,
    figure: Figure::Messages,
    note: "PUSH and PULL, each sender a process, counted at the receiver from the first message to the last; messages from \
           8 KiB on are handed to libzmq without a copy. An event builder also checks each fragment's header, puts events \
           together and keeps books. TCP takes the system's congestion control, and so does ours",
    ..PLAIN
};

const FIO_ROW: Row = Row {
    peer: &FIO,
    parse: parse::parse_fio,
    figure: Figure::Goodput,
    note: "both with O_DIRECT on a file of 1 GiB in the same directory, over and over: past the kernel's page cache, not past \
           the caches of a disk or of a hypervisor",
    ..PLAIN
};
