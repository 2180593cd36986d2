//! Ethernet addresses of neighbours: known ones, ones to ask for, and datagrams that wait for them.
//!
//! A state machine without IO: its owner passes in answers and the time, and receives the neighbours to ask for. The
//! owner asks by ARP (RFC 826) if the port has a network to itself, or through the kernel if the kernel shares the
//! network.
//!
//! The table contains only neighbours that this port asks for. So unsolicited claims of others, true or not, take no
//! memory; they can change an address that is in the table already, as everywhere with ARP, which is unauthenticated.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use thalweg_arena::{KeptPiece, Piece};

/// An Ethernet (MAC) address.
pub type Mac = [u8; 6];

/// Maximum number of neighbours in the table. Beyond that the one that was not needed for longest is removed.
const MAX_NEIGHBOURS: usize = 1024;
/// Maximum number of datagrams that wait for answers, over all neighbours. Further ones are lost.
const MAX_WAITING_DATAGRAMS: usize = 256;

/// Intervals at which neighbours are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Time between two questions for the same neighbour. By ARP no less than a second: RFC 1122, section 2.3.2.1.
    pub(crate) again: Duration,
    /// Age at which an answer is asked for again, if the neighbour is needed.
    pub(crate) fresh: Duration,
    /// Time that a datagram waits for an answer, and that an old answer is used beyond `fresh` while no new one comes.
    pub(crate) patience: Duration,
}

impl Pace {
    /// Intervals for a network on which questions reach every host. RFC 1122 recommends to forget an answer after about
    /// a minute.
    pub(crate) const ARP: Self =
        Self { again: Duration::from_secs(1), fresh: Duration::from_secs(30), patience: Duration::from_millis(3500) };
}

/// Table of the known neighbours.
#[derive(Debug)]
pub(crate) struct Neighbours {
    pace: Pace,
    table: HashMap<Ipv4Addr, Neighbour>,
    waiting: VecDeque<Waiting>,
    /// Time until which no neighbour needs to be asked for.
    idle_until: Duration,
}

#[derive(Debug)]
struct Neighbour {
    mac: Option<Mac>,
    confirmed: Duration,
    asked: Option<Duration>,
    needed: Duration,
}

/// A datagram that waits until its neighbour answers.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Destination of the datagram.
    pub(crate) to: SocketAddrV4,
    /// Neighbour that is to answer: the destination, or a gateway.
    pub(crate) hop: Ipv4Addr,
    /// Head of the datagram.
    pub(crate) head: Vec<u8>,
    /// Piece of the datagram.
    pub(crate) piece: Option<KeptPiece>,
    since: Duration,
}

impl Neighbours {
    /// Creates an empty table.
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, table: HashMap::new(), waiting: VecDeque::new(), idle_until: Duration::ZERO }
    }

    /// Returns the neighbour's address if it is known. From now on the neighbour is asked for whenever it is needed.
    pub(crate) fn find_mac_address(&mut self, host: Ipv4Addr, now: Duration) -> Option<Mac> {
        if let Some(neighbour) = self.table.get_mut(&host) {
            neighbour.needed = now;
            if neighbour.mac.is_none() {
                self.idle_until = Duration::ZERO;
            }
            return neighbour.mac;
        }
        if self.table.len() >= MAX_NEIGHBOURS
            && let Some(oldest) = self.table.iter().min_by_key(|(_, known)| known.needed).map(|(host, _)| *host)
        {
            self.table.remove(&oldest);
        }
        self.table.insert(host, Neighbour { mac: None, confirmed: now, asked: None, needed: now });
        self.idle_until = Duration::ZERO;
        None
    }

    /// Enters an answer of a neighbour, or one in its name. Returns true if the neighbour was asked for.
    pub(crate) fn record_answer(&mut self, host: Ipv4Addr, mac: Mac, now: Duration) -> bool {
        // A group address belongs to no host (IEEE 802.3, section 3.2.3).
        let Some(neighbour) = self.table.get_mut(&host).filter(|_| mac[0] & 1 == 0) else { return false };
        neighbour.mac = Some(mac);
        neighbour.confirmed = now;
        true
    }

    /// Calls `each` for every neighbour to ask for now; with its address if an answer only became old.
    pub(crate) fn for_each_due_query(&mut self, now: Duration, mut each: impl FnMut(Ipv4Addr, Option<Mac>)) {
        if now < self.idle_until {
            return;
        }
        let Pace { again, fresh, patience } = self.pace;
        while self.waiting.front().is_some_and(|waiting| now.saturating_sub(waiting.since) >= patience) {
            self.waiting.pop_front();
        }
        for (host, neighbour) in &mut self.table {
            let old = now.saturating_sub(neighbour.confirmed);
            if old >= fresh + patience {
                neighbour.mac = None;
            }
            let wanted = neighbour.mac.is_none() || old >= fresh;
            let needed = neighbour.asked.is_none_or(|asked| neighbour.needed > asked)
                || self.waiting.iter().any(|waiting| waiting.hop == *host);
            let silent = neighbour.asked.is_none_or(|asked| now.saturating_sub(asked) >= again);
            if wanted && needed && silent {
                neighbour.asked = Some(now);
                each(*host, neighbour.mac);
            }
        }
        self.idle_until = now + again;
    }

    /// Keeps a datagram until its neighbour answers, for a while. The datagram is lost if too many wait.
    pub(crate) fn queue_datagram(
        &mut self,
        to: SocketAddrV4,
        hop: Ipv4Addr,
        head: &[u8],
        piece: Option<Piece<'_>>,
        now: Duration,
    ) {
        if self.waiting.len() < MAX_WAITING_DATAGRAMS {
            let piece = piece.map(Piece::keep_arena);
            self.waiting.push_back(Waiting { to, hop, head: head.to_vec(), piece, since: now });
        }
    }

    /// True if datagrams wait.
    pub(crate) fn has_waiting_datagrams(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the next datagram that need not wait any longer, with the address of its neighbour.
    pub(crate) fn next_ready_datagram(&mut self) -> Option<(Waiting, Mac)> {
        let mut waiting = self.waiting.iter().enumerate();
        let (index, mac) = waiting.find_map(|(index, waiting)| Some((index, self.table.get(&waiting.hop)?.mac?)))?;
        self.waiting.remove(index).map(|waiting| (waiting, mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];

    fn asked(neighbours: &mut Neighbours, now: Duration) -> Vec<(Ipv4Addr, Option<Mac>)> {
        let mut asked = Vec::new();
        neighbours.for_each_due_query(now, |host, mac| asked.push((host, mac)));
        asked
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn somebody() -> (Neighbours, Ipv4Addr) {
        (Neighbours::new(Pace::ARP), Ipv4Addr::new(198, 18, 0, 2))
    }

    #[test]
    fn a_datagram_waits_for_the_answer() {
        let (mut neighbours, host) = somebody();
        assert_eq!(neighbours.find_mac_address(host, seconds(0.0)), None);
        neighbours.queue_datagram(SocketAddrV4::new(host, 9), host, b"head", None, seconds(0.0));
        assert_eq!(asked(&mut neighbours, seconds(0.0)), [(host, None)]);
        assert!(neighbours.next_ready_datagram().is_none());
        assert!(neighbours.record_answer(host, MAC, seconds(0.1)));
        let (waiting, mac) = neighbours.next_ready_datagram().unwrap();
        assert_eq!((waiting.head.as_slice(), mac), (&b"head"[..], MAC));
        assert!(!neighbours.has_waiting_datagrams());
        assert_eq!(neighbours.find_mac_address(host, seconds(0.2)), Some(MAC));
    }

    #[test]
    fn a_silent_neighbour_is_asked_once_a_second_and_its_datagram_is_lost() {
        let (mut neighbours, host) = somebody();
        neighbours.find_mac_address(host, seconds(0.0));
        neighbours.queue_datagram(SocketAddrV4::new(host, 9), host, b"", None, seconds(0.0));
        let times = (0..100).filter(|tenth| !asked(&mut neighbours, seconds(f64::from(*tenth) / 10.0)).is_empty());
        assert_eq!(times.collect::<Vec<_>>(), [0, 10, 20, 30], "and not after its datagram was given up");
        assert!(!neighbours.has_waiting_datagrams());
    }

    #[test]
    fn an_old_answer_is_asked_for_again_where_it_is_needed_and_forgotten_where_none_comes() {
        let (mut neighbours, host) = somebody();
        neighbours.find_mac_address(host, seconds(0.0));
        asked(&mut neighbours, seconds(0.0));
        neighbours.record_answer(host, MAC, seconds(0.1));
        assert_eq!(asked(&mut neighbours, seconds(31.0)), [], "it is not needed");
        assert_eq!(neighbours.find_mac_address(host, seconds(32.0)), Some(MAC));
        assert_eq!(asked(&mut neighbours, seconds(32.1)), [(host, Some(MAC))]);
        assert_eq!(asked(&mut neighbours, seconds(35.0)), []);
        assert_eq!(neighbours.find_mac_address(host, seconds(35.1)), None);
        assert_eq!(asked(&mut neighbours, seconds(36.1)), [(host, None)]);
    }

    #[test]
    fn a_group_address_is_refused() {
        let (mut neighbours, host) = somebody();
        neighbours.find_mac_address(host, seconds(0.0));
        assert!(!neighbours.record_answer(host, [0xff; 6], seconds(0.1)));
        assert_eq!(neighbours.find_mac_address(host, seconds(0.2)), None);
    }

    proptest! {
        #[test]
        fn claims_of_strangers_and_many_destinations_take_no_more_memory_than_there_is(
            answers in prop::collection::vec((any::<u32>(), any::<Mac>()), 0..64),
            destinations in 0_u32..3000,
        ) {
            let mut neighbours = Neighbours::new(Pace::ARP);
            for (host, mac) in answers {
                prop_assert!(!neighbours.record_answer(Ipv4Addr::from(host), mac, seconds(0.0)));
            }
            prop_assert_eq!(neighbours.table.len(), 0);
            for host in 0..destinations {
                let (host, now) = (Ipv4Addr::from(host), seconds(f64::from(host)));
                neighbours.find_mac_address(host, now);
                neighbours.queue_datagram(SocketAddrV4::new(host, 9), host, b"", None, now);
            }
            prop_assert!(neighbours.table.len() <= MAX_NEIGHBOURS && neighbours.waiting.len() <= MAX_WAITING_DATAGRAMS);
            if let Some(last) = destinations.checked_sub(1) {
                prop_assert!(neighbours.table.contains_key(&Ipv4Addr::from(last)));
            }
        }
    }
}
