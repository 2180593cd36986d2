//! Connections: listened for, made, rejected, ended.

use crate::setup::*;
use std::net::SocketAddr;
use std::time::Duration;
use thalweg_rdma::*;

fn anywhere() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn parameters(data: &[u8], inbound_reads: u32, outbound_reads: u32) -> ConnectionParameters {
    ConnectionParameters { private_data: data.to_vec(), inbound_reads, outbound_reads, ..Default::default() }
}

#[test]
fn a_connection_carries_private_data_and_the_limits_of_reads() {
    for arrangement in ARRANGEMENTS {
        let (one, other) = devices(arrangement);
        let (near, far) = (party(&one, &Options::default()), party(&other, &Options::default()));
        let listener = other.listen(anywhere(), 4).unwrap();
        let address = listener.local_address();
        assert_ne!(address.port(), 0);
        let accepting = std::thread::spawn(move || {
            let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
            assert_eq!(request.peer_parameters(), &parameters(b"hello", 5, 3));
            far.queue.post_receive(1, &[far.buffer.sge(0, 8)]).unwrap();
            let connection = request.accept(&far.queue, parameters(b"welcome", 4, 9), PATIENCE).unwrap();
            (far, connection)
        });
        let connection = near.queue.connect(address, parameters(b"hello", 3, 5), PATIENCE).unwrap();
        let (far, their_connection) = accepting.join().unwrap();
        // The smaller of what one side wants and the other serves, both ways (RFC 6581 section 9).
        assert_eq!(connection.peer_parameters(), &parameters(b"welcome", 3, 4));
        assert_eq!(their_connection.peer_parameters(), &parameters(b"hello", 4, 3));
        near.send(2, Work::Send { data: Data::Inline(b"first"), immediate: None });
        near.succeed(2);
        assert_eq!(far.succeed(1).transferred_bytes(), 5);
        // It ends for both.
        far.queue.post_receive(3, &[]).unwrap();
        assert_eq!(connection.wait_for_end(Duration::ZERO).unwrap(), None);
        near.queue.disconnect().unwrap();
        assert_eq!(connection.wait_for_end(PATIENCE).unwrap().as_deref(), Some("disconnected"));
        assert_eq!(their_connection.wait_for_end(PATIENCE).unwrap().as_deref(), Some("disconnected"));
        far.fail(3, Status::Flushed);
    }
}

#[test]
fn a_connection_is_rejected_refused_or_not_answered() {
    for arrangement in ARRANGEMENTS {
        let (one, other) = devices(arrangement);
        let near = party(&one, &Options::default());
        let listener = other.listen(anywhere(), 1).unwrap();
        let address = listener.local_address();
        assert!(other.listen(address, 1).unwrap_err().to_string().contains(&address.to_string()));
        let rejecting = std::thread::spawn(move || {
            listener.wait_for_request(PATIENCE).unwrap().unwrap().reject(b"no".to_vec()).unwrap();
            // Dropped without an answer: rejected, too.
            drop(listener.wait_for_request(PATIENCE).unwrap().unwrap());
            listener
        });
        for data in [&b"no"[..], b""] {
            let rejected = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
            assert!(matches!(rejected, ConnectError::Rejected { private_data } if private_data == data));
        }
        let listener = rejecting.join().unwrap();
        let long = ConnectionParameters { private_data: vec![0; MAX_PRIVATE_BYTES + 1], ..Default::default() };
        let refused = near.queue.connect(address, long, PATIENCE).unwrap_err();
        assert!(refused.to_string().contains("the RNIC's limit is 508"), "{refused}");
        // A queue pair that is not in INIT.
        near.queue.modify_state(QueueState::Reset, None).unwrap();
        let refused = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
        assert_eq!(refused.to_string(), "the queue pair is in state RESET, the command needs INIT");
        near.queue.modify_state(QueueState::Init, None).unwrap();
        let late = near.queue.connect(address, ConnectionParameters::default(), Duration::from_millis(1)).unwrap_err();
        assert!(matches!(late, ConnectError::TimedOut(_)), "{late}");
        // Its request is withdrawn.
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        let far = party(&other, &Options::default());
        assert!(request.accept(&far.queue, ConnectionParameters::default(), PATIENCE).is_err());
        drop(listener);
        near.queue.modify_state(QueueState::Reset, None).unwrap();
        near.queue.modify_state(QueueState::Init, None).unwrap();
        let refused = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap_err();
        assert!(refused.to_string().contains("refused"), "{refused}");
    }
}
