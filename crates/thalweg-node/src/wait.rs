//! Ways in which the hot thread of a node waits for work.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thalweg_link::{Endpoint, Endpoints, LinkError, Poller};

/// Way in which the hot thread of a node waits.
///
/// Sleeping costs nothing while nothing arrives, and a wake-up by the kernel, some microseconds, when something does.
/// Polling costs a whole processor, and notices arrivals at once; over shared memory without a system call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Wait {
    /// Asleep until the kernel wakes it.
    #[default]
    Sleep,
    /// Awake, and checking all the time.
    Poll,
    /// Awake for this long after the last arrival, then asleep.
    PollFor(Duration),
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sleep => f.write_str("sleep"),
            Self::Poll => f.write_str("poll"),
            Self::PollFor(time) => humantime::format_duration(*time).fmt(f),
        }
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sleep" => Ok(Self::Sleep),
            "poll" => Ok(Self::Poll),
            // Seconds of polling are hardly meant: a unit is needed here.
            number if number.parse::<f64>().is_ok() => {
                Err(format!("'{number}' has no unit: write the time to poll before sleeping as {number}us"))
            }
            _ => thalweg_text::parse_duration(text).map(Self::PollFor).map_err(|_| {
                format!("'{text}' is not a way to wait: write sleep, poll, or the time to poll before sleeping (50us)")
            }),
        }
    }
}

impl TryFrom<String> for Wait {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Wait> for String {
    fn from(wait: Wait) -> Self {
        wait.to_string()
    }
}

/// Wait between two turns of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// No wait: everything urgent is visible in memory.
    Spin,
    /// A question to the kernel, with the longest time to wait for an answer.
    Ask(Option<Duration>),
}

impl Idle {
    /// Waits, and puts the tokens of those that have work into `tokens`.
    ///
    /// # Errors
    /// The poller fails to wait.
    pub fn wait_for_work(self, poller: &Poller, tokens: &mut Vec<u64>) -> Result<(), LinkError> {
        tokens.clear();
        match self {
            Self::Spin => Ok(()),
            Self::Ask(time) => poller.wait_for_events(time, |token| tokens.push(token)),
        }
    }
}

/// Number of turns between two questions to the kernel while everything urgent is visible in memory. A question takes
/// as long as some ten turns in which nothing arrives.
const TURNS_PER_POLL: u32 = 64;

/// Decides before each turn how to wait for it.
#[derive(Debug)]
pub(crate) struct Waiter {
    wait: Wait,
    /// Time of the last arrival.
    came: Duration,
    /// Number of turns since the last question to the kernel.
    turns: u32,
}

impl Waiter {
    pub(crate) fn new(wait: Wait) -> Self {
        Self { wait, came: Duration::ZERO, turns: 0 }
    }

    /// Returns how to wait for the next turn, at `now` and for at most `timeout`. `came`: something arrived in the last
    /// turn. `hurries`: there is something urgent that only the kernel knows of.
    pub(crate) fn next_idle<E: Endpoint + ?Sized>(
        &mut self,
        endpoints: &mut Endpoints<E>,
        came: bool,
        hurries: bool,
        timeout: Option<Duration>,
        now: Duration,
    ) -> Idle {
        // A thread that does not sleep need not be woken.
        if self.stays_awake(came, now) || timeout == Some(Duration::ZERO) {
            return if self.asks_kernel(hurries || !endpoints.is_cheap_to_poll()) {
                Idle::Ask(Some(Duration::ZERO))
            } else {
                Idle::Spin
            };
        }
        self.turns = 0;
        Idle::Ask(if endpoints.prepare_wait() { timeout } else { Some(Duration::ZERO) })
    }

    fn stays_awake(&mut self, came: bool, now: Duration) -> bool {
        match self.wait {
            Wait::Sleep => false,
            Wait::Poll => true,
            Wait::PollFor(time) => {
                self.came = if came { now } else { self.came };
                now < self.came + time
            }
        }
    }

    /// Returns whether to ask the kernel in this turn, for a thread that stays awake.
    fn asks_kernel(&mut self, hurries: bool) -> bool {
        self.turns += 1;
        let asks = hurries || self.turns >= TURNS_PER_POLL;
        self.turns = if asks { 0 } else { self.turns };
        asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn a_way_to_wait_is_read_as_it_is_written() {
        for (text, wait) in [
            ("sleep", Wait::Sleep),
            ("poll", Wait::Poll),
            ("50us", Wait::PollFor(50 * MICRO)),
            ("1ms", Wait::PollFor(1000 * MICRO)),
        ] {
            assert_eq!(text.parse(), Ok(wait));
            assert_eq!(wait.to_string(), text);
        }
        assert!("spin".parse::<Wait>().unwrap_err().contains("'spin' is not a way to wait"));
        assert!("50".parse::<Wait>().unwrap_err().contains("as 50us"));
    }

    #[test]
    fn who_polls_for_a_while_sleeps_when_nothing_has_come_for_that_long() {
        let mut waiter = Waiter::new(Wait::PollFor(50 * MICRO));
        let begun = Duration::from_secs(1);
        assert!(!waiter.stays_awake(false, begun), "nothing has come yet");
        assert!(waiter.stays_awake(true, begun));
        assert!(waiter.stays_awake(false, begun + 49 * MICRO));
        assert!(!waiter.stays_awake(false, begun + 50 * MICRO));
    }

    #[test]
    fn the_kernel_is_asked_at_once_where_something_hurries_and_else_now_and_then() {
        let mut waiter = Waiter::new(Wait::Poll);
        assert!(waiter.asks_kernel(true) && waiter.asks_kernel(true));
        assert_eq!((0..10 * TURNS_PER_POLL).filter(|_| waiter.asks_kernel(false)).count(), 10);
    }
}
