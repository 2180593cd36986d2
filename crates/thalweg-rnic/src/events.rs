//! Sockets over which programs get events: never waited for, and nothing lost in silence.

use crate::attributes::AsyncEvent;
use crate::command::ConnectionEvent;
use crate::engine::encode_event;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Events that wait for a program which does not read its socket.
const MAX_BACKLOG_EVENTS: usize = 256;

/// The RNIC's end of a program's socket, which keeps the borders of messages.
#[derive(Debug)]
pub struct EventSocket {
    socket: OwnedFd,
    backlog: VecDeque<Vec<u8>>,
    lost: u64,
    /// Makes the event of lost ones; `None`: of equal events, one waits, and none is lost.
    encode_lost: Option<fn(u64) -> Vec<u8>>,
}

impl EventSocket {
    /// Makes one for asynchronous events.
    pub fn for_program(socket: OwnedFd) -> Self {
        Self::new(socket, |number| encode_event(&AsyncEvent::EventsLost { number }))
    }

    /// Makes one for events of a listener or a connection.
    pub fn for_connection(socket: OwnedFd) -> Self {
        Self::new(socket, |number| encode_event(&ConnectionEvent::EventsLost { number }))
    }

    /// Makes one. `encode_lost` is the event that tells how many were lost.
    fn new(socket: OwnedFd, encode_lost: fn(u64) -> Vec<u8>) -> Self {
        Self { socket, backlog: VecDeque::new(), lost: 0, encode_lost: Some(encode_lost) }
    }

    /// Makes one for events of completion queues: of equal events that wait for the program, all but one are left out. So as
    /// many wait as it has queues.
    pub fn for_queues(socket: OwnedFd) -> Self {
        Self { socket, backlog: VecDeque::new(), lost: 0, encode_lost: None }
    }

    /// Sends an event of a listener or a connection, as [`send_event`](Self::send_event) does.
    pub fn send_connection_event(&mut self, event: &ConnectionEvent) -> bool {
        self.send_event(encode_event(event))
    }

    /// Sends an asynchronous event, as [`send_event`](Self::send_event) does.
    pub fn send_async_event(&mut self, event: &AsyncEvent) -> bool {
        self.send_event(encode_event(event))
    }

    /// Sends an event, later if the socket is full. Returns whether events are waiting.
    pub fn send_event(&mut self, event: Vec<u8>) -> bool {
        match self.encode_lost {
            None if self.backlog.contains(&event) => {}
            Some(_) if self.backlog.len() >= MAX_BACKLOG_EVENTS => self.lost += 1,
            _ => self.backlog.push_back(event),
        }
        self.flush_backlog()
    }

    /// Sends what waits. Returns whether events are still waiting.
    pub fn flush_backlog(&mut self) -> bool {
        loop {
            if let Some(encode) = self.encode_lost.filter(|_| self.backlog.is_empty() && self.lost > 0) {
                self.backlog.push_back(encode(std::mem::take(&mut self.lost)));
            }
            let Some(event) = self.backlog.front() else { return false };
            match send(&self.socket, event, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => drop(self.backlog.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                // The program has closed its end: it does not want them.
                Err(_) => {
                    self.backlog.clear();
                    self.lost = 0;
                    return false;
                }
            }
        }
    }
}
