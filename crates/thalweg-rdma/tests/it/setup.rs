//! Two sides with a queue pair each, in every arrangement of programs and RNIC.

use std::sync::OnceLock;
use std::time::{Duration, Instant};
use thalweg_rdma::*;

/// Time after which a test has failed: far more than any machine takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const BUFFER_BYTES: usize = 1 << 16;

pub(crate) const ALL_ACCESS: Access = Access::all();

/// One program's side of a connection.
pub(crate) struct Party {
    pub(crate) queue: QueuePair,
    pub(crate) completions: CompletionQueue,
    pub(crate) buffer: Buffer,
    pub(crate) domain: ProtectionDomain,
    pub(crate) device: Device,
}

/// Where the RNIC runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrangement {
    Embedded,
    EmbeddedTwoPrograms,
    Thread,
    ServiceTwoPrograms,
}

pub(crate) const ARRANGEMENTS: [Arrangement; 4] =
    [Arrangement::Embedded, Arrangement::EmbeddedTwoPrograms, Arrangement::Thread, Arrangement::ServiceTwoPrograms];

/// Returns the devices of two sides.
pub(crate) fn devices(arrangement: Arrangement) -> (Device, Device) {
    match arrangement {
        Arrangement::Embedded => {
            let device = Device::open_embedded(Limits::default()).unwrap();
            (device.clone(), device)
        }
        Arrangement::EmbeddedTwoPrograms => {
            let device = Device::open_embedded(Limits::default()).unwrap();
            (device.clone(), device.open_again().unwrap())
        }
        Arrangement::Thread => {
            let device = Device::open_thread(Limits::default()).unwrap();
            (device.clone(), device)
        }
        Arrangement::ServiceTwoPrograms => {
            static PATH: OnceLock<std::path::PathBuf> = OnceLock::new();
            let path = PATH.get_or_init(|| {
                let directory = tempfile::tempdir().unwrap().keep();
                let path = directory.join("rnic");
                let mut service = thalweg_rnic::Service::listen(&path, Limits::default()).unwrap();
                std::thread::spawn(move || service.serve_programs().unwrap());
                path
            });
            (Device::open_service(path).unwrap(), Device::open_service(path).unwrap())
        }
    }
}

/// Options that the tests vary.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) entries: u32,
    pub(crate) lengths: QueueLengths,
    pub(crate) attributes: QueueAttributes,
    pub(crate) access: Access,
    pub(crate) signal_all: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            entries: 256,
            lengths: QueueLengths { send_sges: 16, receive_sges: 16, inline_bytes: 256, ..QueueLengths::default() },
            attributes: QueueAttributes::default(),
            access: ALL_ACCESS,
            signal_all: false,
        }
    }
}

pub(crate) fn party(device: &Device, options: &Options) -> Party {
    let domain = device.allocate_domain().unwrap();
    party_in(device, &domain, options, None)
}

pub(crate) fn party_in(
    device: &Device,
    domain: &ProtectionDomain,
    options: &Options,
    shared_queue: Option<&SharedReceiveQueue>,
) -> Party {
    let completions = device.create_completion_queue(options.entries, None).unwrap();
    let mut of_pair = QueuePairOptions::new(&completions);
    (of_pair.lengths, of_pair.signal_all, of_pair.shared_queue) = (options.lengths, options.signal_all, shared_queue);
    let queue = domain.create_queue_pair(&of_pair).unwrap();
    queue.modify_state(QueueState::Init, None).unwrap();
    let buffer = domain.create_buffer(BUFFER_BYTES, options.access).unwrap();
    Party { queue, completions, buffer, domain: domain.clone(), device: device.clone() }
}

/// Connects two sides by the numbers of their queue pairs.
pub(crate) fn join(one: &Party, other: &Party, attributes: &QueueAttributes) {
    for (own, peer) in [(one, other), (other, one)] {
        let attributes = QueueAttributes { peer_queue: Some(peer.queue.queue_number()), ..attributes.clone() };
        own.queue.modify_state(QueueState::ReadyToReceive, Some(attributes)).unwrap();
        own.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
    }
}

pub(crate) fn pair_with(arrangement: Arrangement, options: &Options) -> (Party, Party) {
    let (one, other) = devices(arrangement);
    let sides = (party(&one, options), party(&other, options));
    join(&sides.0, &sides.1, &options.attributes);
    sides
}

pub(crate) fn pair(arrangement: Arrangement) -> (Party, Party) {
    pair_with(arrangement, &Options::default())
}

impl Party {
    /// Returns a place in the side's buffer, for the peer.
    pub(crate) fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { address: self.buffer.address_at(offset), stag: self.buffer.stag() }
    }

    pub(crate) fn fill(&self, at: usize, bytes: &[u8]) {
        self.buffer.shared_memory().store_bytes(at, bytes);
    }

    pub(crate) fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.shared_memory().load_bytes(at, &mut bytes);
        bytes
    }

    pub(crate) fn send(&self, id: u64, work: Work<'_>) {
        self.queue.post_send(&SendRequest::signaled(id, work)).unwrap();
    }

    /// Returns the next completion, waiting for it.
    pub(crate) fn next(&self) -> Completion {
        self.try_next().unwrap()
    }

    pub(crate) fn try_next(&self) -> Result<Completion, PollError> {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(completion) = self.completions.poll_one()? {
                return Ok(completion);
            }
            assert!(Instant::now() < end, "no completion");
        }
    }

    /// Returns the next completion, which is a success.
    pub(crate) fn succeed(&self, id: u64) -> Completion {
        let completion = self.next();
        assert!(completion.is_success(), "{completion}");
        assert_eq!(completion.request_id(), id);
        completion
    }

    /// Returns the fault of the next completion.
    pub(crate) fn fail(&self, id: u64, status: Status) -> Fault {
        let completion = self.next();
        assert_eq!((completion.request_id(), completion.status()), (id, status), "{completion}");
        completion.fault().unwrap()
    }

    /// Asserts that there is no completion, after the RNIC had time to make one.
    pub(crate) fn quiet(&self) {
        for _ in 0..1000 {
            assert_eq!(self.completions.poll_one().unwrap(), None);
        }
    }

    pub(crate) fn event(&self) -> AsyncEvent {
        self.device.wait_for_async_event(PATIENCE).unwrap().expect("an event")
    }

    pub(crate) fn state(&self) -> QueueState {
        self.queue.query_state().unwrap().0
    }
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}
