//! Two ports and the frames between them, which a test carries by hand, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;
use thalweg_efe::{Class, ConnectionId, Event, Frame, Header, Options, Port};
use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

pub(crate) type TestPort = Port<u8, Vec<u8>>;

/// Creates a port with repeatable tokens.
pub(crate) fn port(options: Options, seed: u64) -> TestPort {
    let mut state = seed;
    Port::new(options, move || {
        state = state.wrapping_add(GOLDEN_GAMMA);
        mix_bits(state)
    })
}

/// Returns the next frame of a port.
pub(crate) fn next_frame(port: &mut TestPort, now: Duration) -> Option<(u8, Vec<u8>)> {
    let mut buffer = vec![0; port.max_frame_bytes()];
    let frame = port.next_frame(now, &mut buffer)?;
    buffer.truncate(frame.bytes);
    Some((frame.to, buffer))
}

/// Returns the events of a port.
pub(crate) fn events(port: &mut TestPort) -> Vec<Event<Vec<u8>>> {
    std::iter::from_fn(|| port.next_event()).collect()
}

/// Two ports: number 0 begins connections to number 1.
pub(crate) struct Pair {
    pub(crate) ports: [TestPort; 2],
    pub(crate) now: Duration,
    /// Packets that came, at each end: class, sequence number and content.
    pub(crate) packets: [Vec<(Class, u32, Vec<u8>)>; 2],
    pub(crate) events: [Vec<Event<Vec<u8>>>; 2],
    /// Header of the latest frame of each end.
    pub(crate) headers: [Option<Header>; 2],
    /// All frames sent, where they are recorded.
    pub(crate) recording: Option<Vec<Vec<u8>>>,
    /// Directions in which frames are lost, by their senders.
    pub(crate) cut: [bool; 2],
    /// Packets that an upper layer has not accepted yet, at each end.
    pub(crate) accepts: [bool; 2],
    pub(crate) pending: [VecDeque<(ConnectionId, Class, u32)>; 2],
}

impl Pair {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            ports: [port(options.clone(), 1), port(options.clone(), 2)],
            now: Duration::ZERO,
            packets: [Vec::new(), Vec::new()],
            events: [Vec::new(), Vec::new()],
            headers: [None; 2],
            recording: None,
            cut: [false; 2],
            accepts: [true; 2],
            pending: [VecDeque::new(), VecDeque::new()],
        }
    }

    /// Returns a pair with a connection, and its names at both ends.
    pub(crate) fn connected(options: &Options) -> (Self, ConnectionId, ConnectionId) {
        let mut pair = Self::new(options);
        let (near, far) = pair.connect();
        (pair, near, far)
    }

    /// Opens the connection.
    pub(crate) fn connect(&mut self) -> (ConnectionId, ConnectionId) {
        let pair = self;
        let near = pair.ports[0].connect(1, b"hello", pair.now).unwrap();
        pair.exchange();
        let [Event::Incoming { connection: far, private }] = &pair.events[1][..] else {
            panic!("{:?}", pair.events[1]);
        };
        assert_eq!(&private[..], b"hello");
        let far = *far;
        pair.ports[1].accept_connection(far, b"welcome", pair.now).unwrap();
        pair.exchange();
        assert!(
            matches!(&pair.events[0][..], [Event::Connected { private, .. }] if &private[..] == b"welcome"),
            "{:?}",
            pair.events[0]
        );
        assert!(matches!(pair.events[1][1], Event::Connected { .. }));
        pair.events = [Vec::new(), Vec::new()];
        (near, far)
    }

    /// Carries frames until there are none, a microsecond each.
    pub(crate) fn exchange(&mut self) {
        for _ in 0..100_000 {
            let mut is_quiet = true;
            for from in 0..2 {
                while let Some((to, frame)) = next_frame(&mut self.ports[from], self.now) {
                    assert_eq!(usize::from(to), 1 - from);
                    is_quiet = false;
                    self.recording.iter_mut().for_each(|frames| frames.push(frame.clone()));
                    self.headers[from] = Some(Frame::parse_bytes(&frame).unwrap().header);
                    self.now += Duration::from_micros(1);
                    if !self.cut[from] {
                        self.deliver(from, &frame);
                    }
                }
                let events = events(&mut self.ports[from]);
                self.events[from].extend(events);
            }
            if is_quiet {
                return;
            }
        }
        panic!("the ports send without end");
    }

    fn deliver(&mut self, from: usize, frame: &[u8]) {
        let to = 1 - from;
        let Some(arrival) = self.ports[to].receive(u8::try_from(from).unwrap(), frame, self.now) else { return };
        let (id, class, sequence) = (arrival.connection, arrival.class, arrival.sequence);
        self.packets[to].push((class, sequence, arrival.packet.to_vec()));
        if self.accepts[to] {
            self.ports[to].accept(id, class, sequence);
        } else {
            self.pending[to].push_back((id, class, sequence));
        }
    }

    /// Lets this much time pass, with all deadlines in it.
    pub(crate) fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(next) = self.ports.iter().filter_map(TestPort::next_deadline).min().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.exchange();
        }
        self.now = self.now.max(end);
        self.exchange();
    }
}
