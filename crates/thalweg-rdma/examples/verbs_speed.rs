//! Figures of verbs on this machine: `cargo run --release -p thalweg-rdma --example verbs_speed`.
//!
//! Each figure is the median of five rounds; latencies have their 99th percentile beside them. With the argument `busy`,
//! the program only posts and polls a million writes between two marks, `getppid` calls, for `strace -c -f`.
//!
//! With `serve TRANSPORT ADDRESS` (`tcp`, `efe`, `efe-xdp`, `efe-ethernet`), the program is the far side of one that is
//! called with `to TRANSPORT ADDRESS` in another process, or network namespace: the latter prints one line, the latency of
//! a write of one byte, there and back and waited for in memory, and the rate of writes of 128 KiB. Both RNICs are
//! embedded and poll, as `ucx_perftest` does, whose tests `ucp_put_lat` and `ucp_put_bw` are the same.

use rustix::process::getppid;
use std::hint::black_box;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use thalweg_arena::{Ring, SharedMemory};
use thalweg_rdma::*;

const ROUNDS: usize = 5;

struct Half {
    queue: QueuePair,
    completions: CompletionQueue,
    buffer: Buffer,
    domain: ProtectionDomain,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|argument| argument == "busy") {
        return post_and_poll_a_million();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, transport, address] = &arguments[..] {
        let (transport, address) = (transport_of(transport)?, address.parse()?);
        return if role == "serve" { serve_peer(transport, address) } else { measure_peer(transport, address) };
    }
    write_latency("embedded, one thread", &Device::open_embedded(Limits::default())?)?;
    write_latency("thread", &Device::open_thread(Limits::default())?)?;
    ping_pong()?;
    bandwidth(&Device::open_embedded(Limits::default())?)?;
    message_rate("embedded", &Device::open_embedded(Limits::default())?)?;
    message_rate("thread", &Device::open_thread(Limits::default())?)?;
    to_another_rnic(Transport::Tcp, "MPA over TCP")?;
    to_another_rnic(Transport::Efe, "EFE over UDP")?;
    registration()?;
    doorbell()?;
    Ok(())
}

fn half(device: &Device, bytes: usize) -> Result<Half, VerbsError> {
    let domain = device.allocate_domain()?;
    let completions = device.create_completion_queue(1024, None)?;
    let mut options = QueuePairOptions::new(&completions);
    options.lengths.send_requests = 512;
    let queue = domain.create_queue_pair(&options)?;
    queue.modify_state(QueueState::Init, None)?;
    let buffer = domain.create_buffer(bytes, Access::all())?;
    Ok(Half { queue, completions, buffer, domain })
}

fn pair(one: &Device, other: &Device, bytes: usize) -> Result<(Half, Half), VerbsError> {
    let (near, far) = (half(one, bytes)?, half(other, bytes)?);
    for (own, peer) in [(&near, &far), (&far, &near)] {
        let attributes = QueueAttributes { peer_queue: Some(peer.queue.queue_number()), ..QueueAttributes::default() };
        own.queue.modify_state(QueueState::ReadyToReceive, Some(attributes))?;
        own.queue.modify_state(QueueState::ReadyToSend, None)?;
    }
    Ok((near, far))
}

impl Half {
    fn place(&self) -> RemoteAddress {
        RemoteAddress { address: self.buffer.address_at(0), stag: self.buffer.stag() }
    }

    fn wait(&self) -> Result<(), Box<dyn std::error::Error>> {
        loop {
            match self.completions.poll_one()? {
                Some(completion) if completion.is_success() => return Ok(()),
                Some(completion) => return Err(completion.to_string().into()),
                None => {}
            }
        }
    }
}

/// From posting a write of one byte to having polled its completion.
fn write_latency(mode: &str, device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    const WRITES: usize = 20_000;
    let (near, far) = pair(device, device, 4096)?;
    let data = [near.buffer.sge(0, 1)];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut times = Vec::with_capacity(WRITES);
        for id in 0..WRITES as u64 {
            let work = Work::Write { data: Data::Memory(&data), to: far.place(), immediate: None };
            let begin = Instant::now();
            near.queue.post_send(&SendRequest::signaled(id, work))?;
            near.wait()?;
            times.push(begin.elapsed());
        }
        rounds.push(median_and_p99(times));
    }
    print_latency(&format!("write of 1 B, post to completion, {mode}"), rounds);
    Ok(())
}

/// Half of the time for a byte there and back, each written by RDMA and waited for in memory, as `ib_write_lat`: two
/// threads with an open RNIC each, both of one embedded engine.
fn ping_pong() -> Result<(), Box<dyn std::error::Error>> {
    const TURNS: u64 = 100_000;
    let one = Device::open_embedded(Limits::default())?;
    let (near, far) = pair(&one, &one.open_again()?, 4096)?;
    let (near_place, far_place) = (near.place(), far.place());
    let turn = |own: &Half, peer: RemoteAddress, id: u64| {
        let byte = [id as u8];
        let work = Work::Write { data: Data::Inline(&byte), to: peer, immediate: None };
        own.queue.post_send(&SendRequest::signaled(id, work)).map_err(|error| error.to_string())?;
        own.wait().map_err(|error| error.to_string())
    };
    let wait_for = |own: &Half, id: u64| {
        let mut byte = [0];
        loop {
            own.buffer.shared_memory().load_bytes(0, &mut byte);
            if byte[0] == id as u8 {
                return;
            }
            std::hint::spin_loop();
        }
    };
    let all = ROUNDS as u64 * TURNS;
    let rounds = std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            for id in 1..=all {
                wait_for(&far, id);
                turn(&far, near_place, id)?;
            }
            Ok::<(), String>(())
        });
        let mut rounds = Vec::new();
        for round in 0..ROUNDS as u64 {
            let mut times = Vec::new();
            for id in round * TURNS + 1..=(round + 1) * TURNS {
                let begin = Instant::now();
                turn(&near, far_place, id)?;
                wait_for(&near, id);
                times.push(begin.elapsed() / 2);
            }
            rounds.push(median_and_p99(times));
        }
        echo.join().map_err(|_| "the other thread has ended".to_string())??;
        Ok::<_, String>(rounds)
    })?;
    print_latency("write of 1 B, one way of a ping-pong, embedded, two threads", rounds);
    Ok(())
}

/// Writes of 64 KiB, posted 16 at a time, beside copies of the same memory by the processor.
fn bandwidth(device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    const BYTES: usize = 64 << 10;
    const BATCH: u64 = 16;
    const WRITES: u64 = 1250 * BATCH;
    let (near, far) = pair(device, device, BYTES)?;
    let data = [near.buffer.sge(0, BYTES as u32)];
    let work = Work::Write { data: Data::Memory(&data), to: far.place(), immediate: None };
    let requests: Vec<SendRequest<'_>> = (1..=BATCH)
        .map(|id| SendRequest { flags: if id == BATCH { SendFlags::SIGNALED } else { SendFlags::empty() }, id, work })
        .collect();
    let (from, mut to) = (vec![1u8; BYTES], vec![0u8; BYTES]);
    let (mut rates, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..WRITES / BATCH {
            near.queue.post_sends(&requests).map_err(|(_, error)| error)?;
            near.wait()?;
        }
        rates.push(WRITES as f64 * BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9);
        let begin = Instant::now();
        for _ in 0..WRITES {
            black_box(&mut to).copy_from_slice(black_box(&from));
        }
        copies.push(WRITES as f64 * BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9);
    }
    let (rate, copy) = (median(rates), median(copies));
    println!(
        "writes of 64 KiB, posted {BATCH} at a time, embedded: {rate:.1} GB/s; memcpy of as much: {copy:.1} GB/s; ratio {:.2}",
        rate / copy
    );
    Ok(())
}

/// Writes of one byte, posted 32 at a time, the last of which is signaled.
fn message_rate(mode: &str, device: &Device) -> Result<(), Box<dyn std::error::Error>> {
    const BATCH: u64 = 32;
    const BATCHES: u64 = 3_000;
    let (near, far) = pair(device, device, 4096)?;
    let data = [near.buffer.sge(0, 1)];
    let work = Work::Write { data: Data::Memory(&data), to: far.place(), immediate: None };
    let requests: Vec<SendRequest<'_>> = (1..=BATCH)
        .map(|id| SendRequest { flags: if id == BATCH { SendFlags::SIGNALED } else { SendFlags::empty() }, id, work })
        .collect();
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        // Half of the queue is posted while the other half completes.
        for batch in 0..BATCHES {
            near.queue.post_sends(&requests).map_err(|(_, error)| error)?;
            if batch >= 8 {
                near.wait()?;
            }
        }
        for _ in 0..8 {
            near.wait()?;
        }
        rates.push((BATCH * BATCHES) as f64 / begin.elapsed().as_secs_f64() / 1e6);
    }
    println!("writes of 1 B, posted {BATCH} at a time, {mode}: {:.2} million/s", median(rates));
    Ok(())
}

/// Two embedded RNICs on loopback, with CRCs over TCP: sends of one byte there and back, writes of 128 KiB.
fn to_another_rnic(transport: Transport, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    const BYTES: u32 = 128 << 10;
    const TURNS: u64 = 2_000;
    const WRITES: u64 = 2_000;
    const TIMEOUT: Duration = Duration::from_secs(10);
    let near = half(&Device::open_embedded(Limits::default())?, BYTES as usize)?;
    let other = Device::open_embedded(Limits::default())?;
    let far = half(&other, BYTES as usize)?;
    let (far_place, listener) = (far.place(), other.listen_over(transport, "127.0.0.1:0".parse()?, 1)?);
    let address = listener.local_address();
    let all = ROUNDS as u64 * TURNS;
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let request = listener.wait_for_request(TIMEOUT).map_err(|error| error.to_string())?.ok_or("no request")?;
            for id in 0..2 {
                far.queue.post_receive(id, &[far.buffer.sge(0, 1)]).map_err(|error| error.to_string())?;
            }
            let parameters = ConnectionParameters::default();
            let _connection = request.accept(&far.queue, parameters, TIMEOUT).map_err(|error| error.to_string())?;
            for id in 0..all {
                far.wait().map_err(|error| error.to_string())?;
                far.queue.post_receive(id, &[far.buffer.sge(0, 1)]).map_err(|error| error.to_string())?;
                let work = Work::Send { data: Data::Inline(b"x"), immediate: None };
                far.queue
                    .post_send(&SendRequest { id, flags: SendFlags::empty(), work })
                    .map_err(|error| error.to_string())?;
                if id % 256 == 255 {
                    // Frees the queue.
                    let work = Work::Write { data: Data::Inline(&[]), to: far.place(), immediate: None };
                    far.queue.post_send(&SendRequest::signaled(id, work)).map_err(|error| error.to_string())?;
                    far.wait().map_err(|error| error.to_string())?;
                }
            }
            // Drives its RNIC until the last message has come.
            far.wait().map_err(|error| error.to_string())
        });
        let _connection = near.queue.connect_over(transport, address, ConnectionParameters::default(), TIMEOUT)?;
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut times = Vec::new();
            for id in 0..TURNS {
                let begin = Instant::now();
                near.queue.post_receive(id, &[near.buffer.sge(0, 1)])?;
                let work = Work::Send { data: Data::Inline(b"x"), immediate: None };
                near.queue.post_send(&SendRequest::signaled(id, work))?;
                near.wait()?;
                near.wait()?;
                times.push(begin.elapsed() / 2);
            }
            rounds.push(median_and_p99(times));
        }
        print_latency(&format!("send of 1 B, one way of a ping-pong, {name}, both embedded"), rounds);
        let (mut rates, data) = (Vec::new(), [near.buffer.sge(0, BYTES)]);
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for id in 0..WRITES {
                let work = Work::Write { data: Data::Memory(&data), to: far_place, immediate: None };
                near.queue.post_send(&SendRequest::signaled(id, work))?;
                near.wait()?;
            }
            // The answer to a read follows all writes.
            near.queue
                .post_send(&SendRequest::signaled(0, Work::Read { into: &[near.buffer.sge(0, 1)], from: far_place }))?;
            near.wait()?;
            rates.push(WRITES as f64 * f64::from(BYTES) / begin.elapsed().as_secs_f64() / 1e9);
        }
        println!("writes of 128 KiB, {name}, both embedded: {:.2} GB/s", median(rates));
        near.queue.post_send(&SendRequest::signaled(0, Work::Send { data: Data::Inline(b"x"), immediate: None }))?;
        near.wait()?;
        echo.join().map_err(|_| "the other thread has ended")??;
        Ok(())
    })
}

fn transport_of(name: &str) -> Result<Transport, String> {
    match name {
        "tcp" => Ok(Transport::Tcp),
        "efe" => Ok(Transport::Efe),
        "efe-xdp" => Ok(Transport::EfeXdp),
        "efe-ethernet" => Ok(Transport::EfeEthernet),
        other => Err(format!("'{other}' is no transport: write tcp, efe, efe-xdp or efe-ethernet")),
    }
}

const PEER_WRITE_BYTES: u32 = 128 << 10;
/// First byte of the far side's memory that ends it.
const END_BYTE: u8 = 255;

/// Returns the place of a side's memory as private data, and the other way round.
fn encode_place(place: RemoteAddress) -> ConnectionParameters {
    let private_data = [&place.address.to_be_bytes()[..], &place.stag.to_be_bytes()].concat();
    ConnectionParameters { private_data, ..ConnectionParameters::default() }
}

fn decode_place(parameters: &ConnectionParameters) -> Option<RemoteAddress> {
    let (address, rest) = parameters.private_data.split_first_chunk()?;
    let stag = u32::from_be_bytes(*rest.first_chunk()?);
    Some(RemoteAddress { address: u64::from_be_bytes(*address), stag })
}

impl Half {
    fn write_byte(&self, byte: u8, to: RemoteAddress) -> Result<(), Box<dyn std::error::Error>> {
        let work = Work::Write { data: Data::Inline(&[byte]), to, immediate: None };
        self.queue.post_send(&SendRequest::signaled(0, work))?;
        self.wait()
    }

    /// Waits for another first byte in memory, driving the RNIC.
    fn wait_for_other_byte(&self, device: &Device, than: u8) -> Result<u8, Box<dyn std::error::Error>> {
        let mut byte = [than];
        for polls in 1_u64.. {
            device.make_progress();
            self.buffer.shared_memory().load_bytes(0, &mut byte);
            if byte[0] != than {
                break;
            }
            if polls.is_multiple_of(1 << 20) && self.queue.query_state()?.0 != QueueState::ReadyToSend {
                return Err("the connection has ended".into());
            }
        }
        Ok(byte[0])
    }
}

/// Far side of [`measure_peer`]: writes each byte back.
fn serve_peer(transport: Transport, address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open_embedded(Limits::default())?;
    let far = half(&device, PEER_WRITE_BYTES as usize + 4096)?;
    let listener = device.listen_over(transport, address, 1)?;
    println!("serving at {}", listener.local_address());
    let request = listener.wait_for_request(Duration::from_secs(60))?.ok_or("no peer has come")?;
    let near_place = decode_place(request.peer_parameters()).ok_or("no place of the peer's memory")?;
    let _connection = request.accept(&far.queue, encode_place(far.place()), Duration::from_secs(10))?;
    let mut last = 0;
    loop {
        last = far.wait_for_other_byte(&device, last)?;
        far.write_byte(last, near_place)?;
        if last == END_BYTE {
            // Drives the RNIC until the peer has gone.
            while far.queue.query_state()?.0 == QueueState::ReadyToSend {
                device.make_progress();
            }
            return Ok(());
        }
    }
}

fn measure_peer(transport: Transport, address: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    const TURNS: usize = 50_000;
    const WRITES: u32 = 16_000;
    let device = Device::open_embedded(Limits::default())?;
    let near = half(&device, PEER_WRITE_BYTES as usize)?;
    let timeout = Duration::from_secs(10);
    let connection = near.queue.connect_over(transport, address, encode_place(near.place()), timeout)?;
    let far_place = decode_place(connection.peer_parameters()).ok_or("no place of the peer's memory")?;
    let (mut times, mut last) = (Vec::with_capacity(TURNS), 0);
    for turn in 0..TURNS {
        let begin = Instant::now();
        near.write_byte((turn % 250) as u8 + 1, far_place)?;
        last = near.wait_for_other_byte(&device, last)?;
        times.push(begin.elapsed() / 2);
    }
    let (median, p99) = median_and_p99(times);
    let data = [near.buffer.sge(0, PEER_WRITE_BYTES)];
    let to = RemoteAddress { address: far_place.address + 4096, ..far_place };
    let begin = Instant::now();
    for id in 0..WRITES.into() {
        near.queue
            .post_send(&SendRequest::signaled(id, Work::Write { data: Data::Memory(&data), to, immediate: None }))?;
        near.wait()?;
    }
    // The answer to a read follows all writes.
    near.queue.post_send(&SendRequest::signaled(0, Work::Read { into: &[near.buffer.sge(0, 1)], from: to }))?;
    near.wait()?;
    let rate = f64::from(WRITES) * f64::from(PEER_WRITE_BYTES) / begin.elapsed().as_secs_f64() / 1e9;
    println!(
        "write of 1 B, one way: median {:.2} us, p99 {:.2} us; writes of 128 KiB: {rate:.3} GB/s",
        median / 1e3,
        p99 / 1e3
    );
    near.buffer.shared_memory().store_bytes(0, &[0]);
    near.write_byte(END_BYTE, far_place)?;
    near.wait_for_other_byte(&device, 0)?;
    near.queue.disconnect()?;
    // What is left to be sent.
    (0..1000).for_each(|_| _ = device.make_progress());
    Ok(())
}

/// Registration of a memfd, beside `mlock` of the same memory.
fn registration() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open_embedded(Limits::default())?;
    let domain = device.allocate_domain()?;
    for (name, bytes, bar) in [("1 MiB", 1 << 20, 55.3), ("1 GiB", 1 << 30, 1.4)] {
        let (mut registered, mut pinned) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (fd, memory) = SharedMemory::create("verbs-speed", bytes)?;
            let range = MemoryRange { offset: 0, length: bytes as u64, base: memory.base_address() };
            let begin = Instant::now();
            let region = domain.register_memory(fd.as_fd(), range, Access::all())?;
            registered.push(begin.elapsed().as_secs_f64() * 1e6);
            drop(region);
            let begin = Instant::now();
            memory.pin_pages()?;
            pinned.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        let (registered, pinned) = (median(registered), median(pinned));
        let percent = 100.0 * registered / pinned;
        println!(
            "registration of {name}, populated, embedded: {registered:.2} us; mlock of it: {pinned:.1} us; \
             {percent:.2} % (the ExpEther paper: {bar} %)"
        );
    }
    Ok(())
}

/// Posting while the RNIC is awake, beside the cheapest system call.
fn doorbell() -> Result<(), Box<dyn std::error::Error>> {
    const CALLS: u32 = 1_000_000;
    let (mut doorbells, mut calls) = (Vec::new(), Vec::new());
    let (mut sender, mut receiver) = Ring::create("verbs-speed", 1024)?.split();
    for _ in 0..ROUNDS {
        let mut spent = Duration::ZERO;
        for _ in 0..CALLS / 1000 {
            let begin = Instant::now();
            for _ in 0..1000 {
                sender.push(&[1; 64])?;
                black_box(sender.publish());
            }
            spent += begin.elapsed();
            while receiver.pop()?.is_some() {}
        }
        doorbells.push(spent.as_secs_f64() * 1e9 / f64::from(CALLS));
        let begin = Instant::now();
        for _ in 0..CALLS {
            black_box(getppid());
        }
        calls.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    let (doorbell, call) = (median(doorbells), median(calls));
    let percent = 100.0 * doorbell / (doorbell + call);
    println!(
        "descriptor and mapped doorbell, RNIC awake: {doorbell:.1} ns; getppid: {call:.1} ns; mapped in percent of the \
         same with a system call: {percent:.0} % (the ExpEther paper: 46 %)"
    );
    Ok(())
}

fn post_and_poll_a_million() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open_embedded(Limits::default())?;
    let (near, far) = pair(&device, &device, 4096)?;
    let data = [near.buffer.sge(0, 1)];
    black_box(getppid());
    for id in 0..1_000_000 {
        let work = Work::Write { data: Data::Memory(&data), to: far.place(), immediate: None };
        near.queue.post_send(&SendRequest::signaled(id, work))?;
        near.wait()?;
    }
    black_box(getppid());
    drop(near.domain);
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn median_and_p99(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |part: f64| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e9;
    (at(0.5), at(0.99))
}

fn print_latency(what: &str, rounds: Vec<(f64, f64)>) {
    let (medians, p99s): (Vec<f64>, Vec<f64>) = rounds.into_iter().unzip();
    println!("{what}: median {:.0} ns, p99 {:.0} ns", median(medians), median(p99s));
}
