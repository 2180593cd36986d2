//! A peer that is played by hand, with verbs and buffers made one by one.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use thalweg_link::Address;
use thalweg_rdma::*;
use thalweg_rdma_link::{BUFFER_BYTES, RECEIVES};
use thalweg_wire::Message;

/// Bound on waiting, for tests that would otherwise hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Private data with which both sides greet.
pub(crate) const GREETING: &[u8] = b"TWRD\x01\0\0\0";

/// Bytes of memory beside the receives: for sends, and to be read.
pub(crate) const MEMORY_BYTES: usize = 1 << 20;

/// A side with an RNIC in a thread of its own.
pub(crate) struct Hand {
    pub(crate) queue: QueuePair,
    pub(crate) completions: CompletionQueue,
    receives: Buffer,
    pub(crate) memory: Buffer,
    _domain: ProtectionDomain,
    pub(crate) device: Device,
    /// Receives that were posted, as the peer is to be informed.
    pub(crate) posted: u32,
}

impl Hand {
    pub(crate) fn new() -> Self {
        let device = Device::open_thread(Limits::default()).unwrap();
        let domain = device.allocate_domain().unwrap();
        let completions = device.create_completion_queue(1024, None).unwrap();
        let queue = domain.create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
        let attributes = QueueAttributes { access: Access::REMOTE, ..QueueAttributes::default() };
        queue.modify_state(QueueState::Init, Some(attributes)).unwrap();
        let receives = domain.create_buffer(RECEIVES as usize * BUFFER_BYTES, Access::LOCAL_WRITE).unwrap();
        let memory = domain.create_buffer(MEMORY_BYTES, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        let hand = Self { queue, completions, receives, memory, _domain: domain, device, posted: RECEIVES };
        (0..u64::from(RECEIVES)).for_each(|number| hand.post_receive(number));
        hand
    }

    fn post_receive(&self, number: u64) {
        let into = self.receives.sge(number * BUFFER_BYTES as u64, BUFFER_BYTES as u32);
        self.queue.post_receive(number, &[into]).unwrap();
    }

    pub(crate) fn begin_connect(&self, address: &Address, private_data: &[u8]) -> PendingConnection {
        let to: SocketAddr = address.place().parse().unwrap();
        let transport = if address.link_kind().name == "rdma" { Transport::Tcp } else { Transport::Efe };
        self.queue.begin_connect(transport, to, parameters(private_data)).unwrap()
    }

    /// Sends bytes as one buffer.
    pub(crate) fn send_buffer(&self, bytes: &[u8]) {
        self.memory.shared_memory().store_bytes(MEMORY_BYTES / 2, bytes);
        let sge = self.memory.sge(MEMORY_BYTES as u64 / 2, bytes.len() as u32);
        let work = Work::Send { data: Data::Memory(&[sge]), immediate: None };
        self.queue.post_send(&SendRequest::signaled(1 << 40, work)).unwrap();
        let done = self.next_completion(|done| done.operation() == CompletedOperation::Send);
        assert!(done.is_success() || done.status() == Status::Flushed, "{done}");
    }

    /// Sends messages, and bytes after them, in one buffer.
    pub(crate) fn say_with(&self, messages: &[Message], bytes: &[u8]) {
        let mut buffer = self.posted.to_le_bytes().to_vec();
        messages.iter().for_each(|message| buffer.extend(message.encode()));
        buffer.extend(bytes);
        self.send_buffer(&buffer);
    }

    pub(crate) fn say(&self, messages: &[Message]) {
        self.say_with(messages, &[]);
    }

    /// Returns the bytes of a received buffer.
    pub(crate) fn received(&self, done: &Completion) -> Vec<u8> {
        assert!(done.is_success() && done.operation() == CompletedOperation::Receive, "{done}");
        let mut bytes = vec![0; done.transferred_bytes() as usize];
        self.receives.shared_memory().load_bytes(done.request_id() as usize * BUFFER_BYTES, &mut bytes);
        bytes
    }

    /// Returns the next completion of a kind; drops others.
    pub(crate) fn next_completion(&self, wanted: impl Fn(&Completion) -> bool) -> Completion {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.completions.poll_one().unwrap() {
                Some(done) if wanted(&done) => return done,
                Some(_) => {}
                None => assert!(Instant::now() < end, "no completion"),
            }
        }
    }
}

pub(crate) fn parameters(private_data: &[u8]) -> ConnectionParameters {
    ConnectionParameters {
        private_data: private_data.to_vec(),
        inbound_reads: 16,
        outbound_reads: 16,
        ..ConnectionParameters::default()
    }
}
