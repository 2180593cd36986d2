//! An independent opinion: sessions as packet captures, dissected by tshark. Skipped where it is not installed.

use crate::ends::{End, OWN, range, remote, request};
use std::process::Command;
use std::time::Duration;
use thalweg_iwarp::header::SegmentHeader;
use thalweg_iwarp::mpa::{
    Acceptance, Connection, EnhancedOffer, FpduEncoder, Initiator, ReadDepths, Reply, Responder, StartupOffer,
};
use thalweg_iwarp::{
    Access, AtomicOperation, ErrorCode, Operation, Payload, RemoteAddress, Stag, StreamSettings, WorkRequest,
};

/// TCP connections as a capture of IPv4 packets (LINKTYPE_RAW).
struct Capture {
    file: Vec<u8>,
    /// Port of the initiator: each connection has its own.
    port: u16,
    /// Sequence numbers of initiator and responder.
    next: [u32; 2],
    packets: u32,
    /// Longest TCP segment in bytes.
    segment_bytes: usize,
}

/// Port of the responder.
const SERVER_PORT: u16 = 20_049;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

impl Capture {
    fn new(segment_bytes: usize) -> Self {
        // Magic, version 2.4, no time zone, longest packet, raw IP (pcap-savefile(5)).
        let fields = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101];
        let file = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        Self { file, port: 40_000, next: [0, 0], packets: 0, segment_bytes }
    }

    fn connect(&mut self) {
        self.port += 1;
        self.next = [1000, 0];
        self.packet(0, SYN, &[]);
        self.next = [1001, 5000];
        self.packet(1, SYN | ACK, &[]);
        self.next = [1001, 5001];
        self.packet(0, ACK, &[]);
    }

    fn send(&mut self, from: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.segment_bytes) {
            self.packet(from, ACK, piece);
            self.next[from] += piece.len() as u32;
        }
    }

    fn packet(&mut self, from: usize, flags: u8, payload: &[u8]) {
        let to = 1 - from;
        let ports = [self.port, SERVER_PORT];
        let length = 40 + payload.len() as u16;
        let mut ip = vec![0x45, 0];
        ip.extend(length.to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        ip.extend([10, 0, 0, 1 + from as u8, 10, 0, 0, 1 + to as u8]);
        let checksum = internet_checksum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        let mut tcp = Vec::new();
        tcp.extend(ports[from].to_be_bytes());
        tcp.extend(ports[to].to_be_bytes());
        tcp.extend(self.next[from].to_be_bytes());
        tcp.extend(self.next[to].to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(payload);
        let pseudo = [&ip[12..20], &[0, 6], &(length - 20).to_be_bytes(), &tcp].concat();
        tcp[16..18].copy_from_slice(&internet_checksum(&pseudo).to_be_bytes());
        self.packets += 1;
        for field in [self.packets, 0, length.into(), length.into()] {
            self.file.extend(field.to_le_bytes());
        }
        self.file.extend(ip);
        self.file.extend(tcp);
    }
}

fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum + (sum >> 16)) as u16)
}

/// Sets up a connection in a capture.
fn set_up(capture: &mut Capture, offer: StartupOffer, acceptance: &Acceptance) -> [Connection; 2] {
    capture.connect();
    let mut initiator = Initiator::new(offer, Duration::ZERO).unwrap();
    capture.send(0, initiator.request_frame());
    let mut responder = Responder::new(Duration::from_secs(5), Duration::ZERO);
    let (_, request) = responder.receive(initiator.request_frame()).unwrap();
    let (reply, there) = request.unwrap().accept(acceptance).unwrap();
    capture.send(1, &reply);
    let (_, Some(Reply::Accepted { connection, .. })) = initiator.receive(&reply).unwrap() else { panic!() };
    [connection, there]
}

/// Sends what both sides have. Returns the operations of the segments.
fn exchange(capture: &mut Capture, ends: &mut [End; 2], encoders: &mut [FpduEncoder; 2]) -> Vec<u8> {
    let mut codes = Vec::new();
    loop {
        let before = codes.len();
        for from in 0..2 {
            while let Some((_, segment)) = ends[from].next_segment() {
                let (header, _) = SegmentHeader::parse_segment(&segment).unwrap();
                codes.push(header.control_fields().code);
                let mut fpdu = Vec::new();
                encoders[from].append(&segment, &[], &mut fpdu);
                capture.send(from, &fpdu);
                ends[1 - from].receive(&segment);
            }
        }
        if codes.len() == before {
            return codes;
        }
    }
}

/// Values of fields that tshark finds in the packets of a capture, a line each. None where it is not installed.
fn dissect(capture: &Capture, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        thalweg_testing::skip::skipped("tshark is not installed");
        return None;
    }
    let wanted = fields.iter().flat_map(|field| ["-e", field]);
    let arguments: Vec<&str> =
        ["-T", "fields", "-E", "separator=/t", "-E", "aggregator=;"].into_iter().chain(wanted).collect();
    let text = run_tshark(capture, &arguments);
    Some(text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect())
}

fn run_tshark(capture: &Capture, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("session.pcap");
    std::fs::write(&file, &capture.file).unwrap();
    let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
    let output = Command::new("tshark").arg("-r").arg(&file).args(checks).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Values of a field that a packet has several times.
fn values(field: &str) -> impl Iterator<Item = &str> {
    field.split(';').filter(|value| !value.is_empty())
}

/// Settings of both sides, and what makes their FPDUs.
fn begin(connections: [Connection; 2]) -> ([End; 2], [FpduEncoder; 2]) {
    let ends = connections.map(|connection| {
        let segment_limit_bytes = 700;
        End::new(StreamSettings {
            segment_limit_bytes,
            first_message: connection.first_message,
            inbound_requests: connection.inbound_requests,
            outbound_requests: connection.outbound_requests,
            ..StreamSettings::default()
        })
    });
    let encoders = connections.map(|connection| FpduEncoder::new(connection.crc, connection.send_markers));
    (ends, encoders)
}

/// Posts an operation of each kind that tshark knows, and a receive for each that needs one.
fn post_all(end: &mut End, peer: &mut End) {
    let gathered = |length| Payload::Gathered(vec![range(OWN, 0, length)]);
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let swap = AtomicOperation::CompareSwap { compare: 0, compare_mask: 1, swap: 3, swap_mask: 2 };
    let victims = [Stag(0x70), Stag(0x71)];
    let send = |length, invalidate| Operation::Send { data: gathered(length), invalidate };
    let operations = [
        (Operation::Write { remote: remote(0), data: gathered(3000), immediate: None }, false),
        (Operation::Write { remote: remote(7), data: gathered(1), immediate: None }, false),
        (Operation::Read { remote: remote(0), into: vec![range(OWN, 0, 2001)] }, false),
        (send(1500, None), false),
        (send(3, None), true),
        (Operation::Atomic { remote: remote(0), operation: add, into: range(OWN, 0, 8) }, false),
        (send(700, Some(victims[0])), false),
        (send(0, Some(victims[1])), true),
        (Operation::Atomic { remote: remote(8), operation: swap, into: range(OWN, 8, 8) }, false),
    ];
    for stag in victims {
        peer.memory.register(stag, 0, vec![0; 8], &[Access::RemoteRead]);
    }
    for (id, (operation, solicited)) in (0..).zip(operations) {
        end.stream.post(WorkRequest { solicited, ..request(id, operation) }).unwrap();
        peer.post_receive(id, vec![range(OWN, 20_000 + 2000 * id, 1500)]);
    }
}

/// Sends everything that tshark knows over a connection, and returns the operations of the segments.
fn hold_session(capture: &mut Capture, crc: bool, markers: bool) -> Vec<u8> {
    let offer = StartupOffer { crc, markers, ..StartupOffer::default() };
    let connections = set_up(capture, offer, &Acceptance { crc, markers, ..Acceptance::default() });
    let (mut ends, mut encoders) = begin(connections);
    let [first, second] = &mut ends;
    post_all(first, second);
    post_all(second, first);
    let sent = exchange(capture, &mut ends, &mut encoders);
    assert!(ends.iter().all(|end| end.stream.fault().is_none()));
    sent
}

/// Every operation, with CRCs and without, with markers and without, in TCP segments of an FPDU and in cut ones. Markers
/// go both ways: tshark 4.0 finds no FPDU in a direction without markers where the other one has them.
#[test]
fn tshark_reads_sessions_without_a_complaint() {
    let mut capture = Capture::new(1460);
    let mut sent = Vec::new();
    for segment_bytes in [1460, 333] {
        capture.segment_bytes = segment_bytes;
        sent.push(hold_session(&mut capture, true, false));
        sent.push(hold_session(&mut capture, true, true));
    }
    let with_crcs: usize = sent.iter().map(Vec::len).sum();
    sent.push(hold_session(&mut capture, false, false));
    let Some(lines) = dissect(&capture, &["tcp.stream", "iwarp_rdma.opcode", "_ws.expert.message"]) else { return };
    for (stream, sent) in sent.iter().enumerate() {
        let lines = lines.iter().filter(|line| line[0] == stream.to_string());
        let found: Vec<u8> = lines.flat_map(|line| values(&line[1])).map(parse_code).collect();
        assert_eq!(&found, sent);
    }
    assert_eq!(complaints(&lines, 2), Vec::<&str>::new());
    let text = run_tshark(&capture, &["-O", "iwarp_mpa"]);
    assert_eq!((text.matches("(Good CRC32)").count(), text.matches("Bad CRC32").count()), (with_crcs, 0));
}

/// RFC 5040 §4.8, in tshark's words for layer, type and code.
#[test]
fn tshark_reads_terminate_messages() {
    let mut capture = Capture::new(1460);
    let known = ErrorCode::ALL.iter().filter(|code| code.layer < 2 || code.code < 5);
    for code in known.clone() {
        let connections = set_up(&mut capture, StartupOffer::default(), &Acceptance::default());
        let (mut ends, mut encoders) = begin(connections);
        ends[0].stream.terminate(*code);
        assert_eq!(exchange(&mut capture, &mut ends, &mut encoders), [7]);
    }
    // Layer, type and code are fields of their own for each layer, and for each type of DDP's.
    let fields = [
        "iwarp_rdma.term_layer",
        "iwarp_rdma.term_etype_rdma",
        "iwarp_rdma.term_etype_ddp",
        "iwarp_rdma.term_etype_llp",
        "iwarp_rdma.term_errcode_rdma",
        "iwarp_rdma.term_errcode_ddp_tagged",
        "iwarp_rdma.term_errcode_ddp_untagged",
        "iwarp_rdma.term_errcode_llp",
        "iwarp_rdma.term_errcode",
        "_ws.expert.message",
    ];
    let Some(lines) = dissect(&capture, &fields) else { return };
    let found: Vec<Vec<u8>> = lines
        .iter()
        .map(|line| line[..9].iter().flat_map(|field| values(field)).map(parse_code).collect())
        .filter(|codes: &Vec<u8>| !codes.is_empty())
        .collect();
    let expected: Vec<Vec<u8>> = known.map(|code| vec![code.layer, code.error_type, code.code]).collect();
    assert_eq!(found, expected);
    assert_eq!(complaints(&lines, 9), Vec::<&str>::new());
}

/// Peer-to-peer set-up (RFC 6581): a Write of no bytes comes first. A Read is refused: the Terminate message includes
/// its length and both headers.
#[test]
fn tshark_reads_an_enhanced_session_that_is_terminated() {
    let mut capture = Capture::new(1460);
    let depths = ReadDepths { inbound: Some(4), outbound: Some(5) };
    let offer =
        StartupOffer { enhanced: Some(EnhancedOffer { depths, peer_to_peer: true }), ..StartupOffer::default() };
    let connections = set_up(&mut capture, offer, &Acceptance::default());
    let (mut ends, mut encoders) = begin(connections);
    let nowhere = RemoteAddress { stag: Stag(0xdead), offset: 64 };
    ends[0].post(1, Operation::Read { remote: nowhere, into: vec![range(OWN, 0, 100)] });
    assert_eq!(exchange(&mut capture, &mut ends, &mut encoders), [0, 1, 7]);
    let fields = [
        "iwarp_rdma.term_hdrct_m",
        "iwarp_rdma.hdrct_d",
        "iwarp_rdma.hdrct_r",
        "iwarp_rdma.term_ddp_seg_len",
        "_ws.expert.message",
    ];
    let Some(lines) = dissect(&capture, &fields) else { return };
    assert_eq!(lines.last().unwrap()[..4], ["1", "1", "1", "002e"]);
    assert_eq!(complaints(&lines, 4), Vec::<&str>::new());
}

fn parse_code(text: &str) -> u8 {
    u8::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

/// Messages of tshark's experts, except those about the beginning of a TCP connection.
fn complaints(lines: &[Vec<String>], index: usize) -> Vec<&str> {
    let messages = lines.iter().flat_map(|line| values(&line[index]));
    messages.filter(|message| !message.starts_with("Connection establish")).collect()
}
