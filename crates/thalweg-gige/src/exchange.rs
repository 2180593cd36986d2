//! Request and response: one command at a time, repeated until it is answered. Without IO.
//!
//! A command that is not answered is sent again with the same number, by which a camera recognises one that it has
//! executed already (GigE Vision 2.x, section 8.1.3). A camera that asks for more time gets it, up to a limit, and one
//! that is silent is asked for as long as the patience lasts.

use crate::gvcp::{Acknowledge, Command, Refusal};
use std::time::Duration;

/// Time that an answer is waited for (section 8.1.3).
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);
/// Number of times that a command is sent; more often only while the patience lasts.
const MAX_TRIES: u32 = 4;
/// Longest time for one command, however often the camera asks for more.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends commands to a camera, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    number: u16,
    pending: Option<PendingCommand>,
    /// Time for which a camera may be silent before a command to it is given up.
    patience: Duration,
    /// Time of the first command since the camera's last answer.
    silent_since: Option<Duration>,
}

/// Command that is not answered yet.
#[derive(Debug)]
struct PendingCommand {
    datagram: Vec<u8>,
    /// Code of the acknowledge that answers it.
    answer: u16,
    tries: u32,
    /// Time at which it is sent again.
    due: Duration,
    /// Time at which it is given up.
    end: Duration,
}

/// Next step of an exchange.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// Send this datagram.
    Send(&'a [u8]),
    /// Wait for an answer until this time.
    Wait(Duration),
    /// No answer came.
    Silent,
}

impl Exchange {
    /// Sets the time for which a camera may be silent, from the first command that it does not answer, before commands
    /// to it are given up.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Begins a command. The command before is given up.
    pub(crate) fn begin_command(&mut self, command: &Command<'_>, now: Duration) {
        // 0 is not a valid number.
        self.number = self.number.checked_add(1).unwrap_or(1);
        self.silent_since.get_or_insert(now);
        self.pending = Some(PendingCommand {
            datagram: command.to_datagram(self.number),
            answer: command.acknowledge_code(),
            tries: 0,
            due: now,
            end: now + COMMAND_TIMEOUT,
        });
    }

    /// Returns the next step.
    pub(crate) fn next_step(&mut self, now: Duration) -> Step<'_> {
        let is_patient = self.silent_since.is_some_and(|since| now < since + self.patience);
        self.pending
            .take_if(|pending| now >= pending.due && (pending.tries >= MAX_TRIES && !is_patient || now >= pending.end));
        match &mut self.pending {
            None => Step::Silent,
            Some(pending) if now < pending.due => Step::Wait(pending.due),
            Some(pending) => {
                pending.tries += 1;
                pending.due = now + ANSWER_TIMEOUT;
                Step::Send(&pending.datagram)
            }
        }
    }

    /// Takes a datagram that came. Returns the answer's payload or its error; `None` if it is not the answer.
    pub(crate) fn accept_datagram<'a>(
        &mut self,
        datagram: &'a [u8],
        now: Duration,
    ) -> Option<Result<&'a [u8], Refusal>> {
        let pending = self.pending.as_mut()?;
        let answer = Acknowledge::parse_datagram(datagram).filter(|answer| answer.number == self.number)?;
        if let Some(time) = answer.pending_time_ms() {
            self.silent_since = Some(now);
            pending.due = (now + Duration::from_millis(time.into()) + ANSWER_TIMEOUT).min(pending.end).max(pending.due);
            return None;
        }
        if answer.answer != pending.answer {
            return None;
        }
        (self.pending, self.silent_since) = (None, None);
        Some(if answer.status.is_error() { Err(Refusal::Status(answer.status)) } else { Ok(answer.payload) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gvcp::Status;
    use proptest::prelude::*;

    const ASK: Command<'_> = Command::ReadRegister(8);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn answer(status: u16, answer: u16, number: u16, payload: &[u8]) -> Vec<u8> {
        let fields = [status, answer, payload.len() as u16, number];
        fields.iter().flat_map(|field| field.to_be_bytes()).chain(payload.iter().copied()).collect()
    }

    #[test]
    fn what_is_not_answered_is_asked_again_and_then_given_up() {
        let mut exchange = Exchange::default();
        exchange.begin_command(&ASK, ms(0));
        for round in 0..4 {
            let now = ms(200 * round);
            assert_eq!(exchange.next_step(now), Step::Send(&ASK.to_datagram(1)), "{round}");
            assert_eq!(exchange.next_step(now), Step::Wait(now + ms(200)));
        }
        assert_eq!(exchange.next_step(ms(800)), Step::Silent);
        assert_eq!(exchange.accept_datagram(&answer(0, 0x81, 1, &[0; 4]), ms(801)), None, "no command waits for it");
    }

    #[test]
    fn a_camera_that_is_silent_is_asked_for_as_long_as_the_patience_lasts() {
        let mut exchange = Exchange::default();
        exchange.set_patience(ms(3000));
        exchange.begin_command(&ASK, ms(0));
        for now in (0..15).map(|round| ms(200 * round)) {
            assert_eq!(exchange.next_step(now), Step::Send(&ASK.to_datagram(1)), "{now:?}");
        }
        assert_eq!(exchange.next_step(ms(3000)), Step::Silent);
        // Patience is with the camera: the next command has no more of it, until the camera answers.
        exchange.begin_command(&ASK, ms(3000));
        for now in (0..4).map(|round| ms(3000 + 200 * round)) {
            assert_eq!(exchange.next_step(now), Step::Send(&ASK.to_datagram(2)), "{now:?}");
        }
        assert_eq!(exchange.accept_datagram(&answer(0, 0x81, 2, &[1; 4]), ms(3700)), Some(Ok(&[1; 4][..])));
        exchange.begin_command(&ASK, ms(5000));
        for now in (0..15).map(|round| ms(5000 + 200 * round)) {
            assert_eq!(exchange.next_step(now), Step::Send(&ASK.to_datagram(3)), "{now:?}");
        }
        assert_eq!(exchange.next_step(ms(8000)), Step::Silent);
    }

    #[test]
    fn only_the_answer_is_the_answer() {
        let mut exchange = Exchange::default();
        exchange.begin_command(&ASK, ms(0));
        exchange.begin_command(&ASK, ms(0));
        for other in [answer(0, 0x81, 1, &[1; 4]), answer(0, 0x83, 2, &[1; 4]), vec![], vec![0; 7]] {
            assert_eq!(exchange.accept_datagram(&other, ms(1)), None);
        }
        assert_eq!(exchange.accept_datagram(&answer(0, 0x81, 2, &[1; 4]), ms(1)), Some(Ok(&[1; 4][..])));
        exchange.begin_command(&ASK, ms(2));
        let denied = answer(0x8006, 0x81, 3, &[]);
        assert_eq!(exchange.accept_datagram(&denied, ms(3)), Some(Err(Refusal::Status(Status::ACCESS_DENIED))));
    }

    #[test]
    fn a_camera_that_asks_for_time_gets_it_but_not_for_ever() {
        let mut exchange = Exchange::default();
        exchange.begin_command(&ASK, ms(0));
        assert!(matches!(exchange.next_step(ms(0)), Step::Send(_)));
        let pending = answer(0, 0x89, 1, &[0, 0, 0x13, 0x88]);
        assert_eq!(exchange.accept_datagram(&pending, ms(100)), None);
        assert_eq!(exchange.next_step(ms(300)), Step::Wait(ms(5300)));
        for at in (1..20).map(|second| ms(1000 * second)) {
            exchange.accept_datagram(&pending, at);
            exchange.next_step(at);
        }
        assert_eq!(exchange.next_step(ms(20_000)), Step::Silent);
    }

    proptest! {
        #[test]
        fn whatever_comes_it_ends(came: Vec<Vec<u8>>) {
            let mut exchange = Exchange::default();
            exchange.begin_command(&ASK, ms(0));
            let mut now = ms(0);
            for datagram in &came {
                now += ms(1);
                let _ = exchange.accept_datagram(datagram, now);
            }
            while let Step::Wait(_) | Step::Send(_) = exchange.next_step(now) {
                now += ms(50);
                prop_assert!(now < Duration::from_secs(12));
            }
        }
    }
}
