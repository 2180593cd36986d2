//! Two RNICs on two hosts of a private network, whose frames go past the kernel's network stack.

use crate::setup::*;
use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};
use thalweg_rdma::*;
use thalweg_sys::netns::Network;

/// Two hosts, or none where the kernel gives no private networks.
fn hosts() -> Option<Network> {
    Network::new(2, 1500)
        .inspect_err(|why| thalweg_testing::skip::skipped(format!("no networks of its own: {why}")))
        .ok()
}

/// Opens an RNIC in a thread on a host, with a queue pair.
fn party_on(network: &Network, host: u16) -> Party {
    let open = || party(&Device::open_thread(Limits::default()).unwrap(), &Options::default());
    network.run_on_host(host, open).unwrap()
}

/// Writes, reads and sends between two hosts; the far one listens at `at`, which the near one reaches by `to`.
fn exchange_over(transport: Transport, network: &Network, at: SocketAddr, to: impl Fn(SocketAddr) -> SocketAddr) {
    let (near, far) = (party_on(network, 0), party_on(network, 1));
    let listener = match far.device.listen_over(transport, at, 4) {
        Ok(listener) => listener,
        Err(why) => return thalweg_testing::skip::skipped(why),
    };
    let taken = far.device.listen_over(transport, at, 4).unwrap_err().to_string();
    assert!(taken.contains("a listener already"), "{taken}");
    let address = to(listener.local_address());
    let accepting = std::thread::spawn(move || {
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        let connection = request.accept(&far.queue, ConnectionParameters::default(), PATIENCE).unwrap();
        (far, connection, listener)
    });
    let parameters = ConnectionParameters::default();
    let _connection = near.queue.connect_over(transport, address, parameters, PATIENCE).unwrap();
    let (far, _their_connection, listener) = accepting.join().unwrap();
    let message = pattern(BUFFER_BYTES / 2, 7);
    near.fill(0, &message);
    let data = [near.buffer.sge(0, message.len() as u32)];
    near.send(1, Work::Write { data: Data::Memory(&data), to: far.at(100), immediate: None });
    near.succeed(1);
    near.send(2, Work::Read { into: &[near.buffer.sge(BUFFER_BYTES as u64 / 2, 1000)], from: far.at(100) });
    near.succeed(2);
    assert_eq!(near.bytes(BUFFER_BYTES / 2, 1000), message[..1000]);
    assert_eq!(far.bytes(100, message.len()), message);
    far.queue.post_receive(3, &[far.buffer.sge(0, 8)]).unwrap();
    near.send(4, Work::Send { data: Data::Inline(b"hello"), immediate: Some(9) });
    near.succeed(4);
    assert_eq!(far.succeed(3).immediate_data(), Some(9));
    // A second queue pair shares the interface's port at both ends.
    let other = party(&near.device, &Options::default());
    let rejecting =
        std::thread::spawn(move || listener.wait_for_request(PATIENCE).unwrap().unwrap().reject(b"full".to_vec()));
    let rejected = other.queue.connect_over(transport, address, ConnectionParameters::default(), PATIENCE).unwrap_err();
    assert!(matches!(rejected, ConnectError::Rejected { private_data } if private_data == b"full"));
    rejecting.join().unwrap().unwrap();
}

/// An address whose scope is the interface of a private network's host.
fn scoped(network: &Network, host: u16) -> SocketAddr {
    let resolve = || (format!("fe80::%{}", Network::INTERFACE), 0).to_socket_addrs().unwrap().next().unwrap();
    network.run_on_host(host, resolve).unwrap()
}

#[test]
fn rnics_speak_in_ethernet_frames_without_ip() {
    let Some(network) = hosts() else { return };
    let SocketAddr::V6(near) = scoped(&network, 0) else { panic!("of another family") };
    exchange_over(Transport::EfeEthernet, &network, scoped(&network, 1), |far| {
        let SocketAddr::V6(far) = far else { panic!("{far}") };
        SocketAddrV6::new(*far.ip(), 0, 0, near.scope_id()).into()
    });
    let near = party_on(&network, 0);
    let nowhere: SocketAddr = "10.0.0.1:7".parse().unwrap();
    let parameters = ConnectionParameters::default();
    let error = near.queue.connect_over(Transport::EfeEthernet, nowhere, parameters, PATIENCE).unwrap_err().to_string();
    assert!(error.contains("fe80::"), "{error}");
}

#[cfg(feature = "af-xdp")]
#[test]
fn rnics_speak_through_af_xdp() {
    let Some(network) = hosts() else { return };
    let at = SocketAddr::new(Network::host_address(1).into(), 4791);
    exchange_over(Transport::EfeXdp, &network, at, |far| far);
}
