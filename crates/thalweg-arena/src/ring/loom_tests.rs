//! Every interleaving of a sender and a receiver, as far as loom explores them. The models show that cells arrive in
//! order, that no cell is written while it is read, and that no side sleeps when there is something to do (loom reports
//! a deadlock).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p thalweg-arena --release loom`

use super::{CELL_BYTES, PushError, Ring, RingReceiver, RingSender};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Model of an eventfd with `epoll`: a ring stays pending until a thread has waited for it.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[test]
fn a_sleeping_receiver_is_woken() {
    model(|| {
        let (mut sender, mut receiver) = Ring::modelled(4, 0).split();
        let bell = Arc::new(Bell::default());
        let theirs = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            for number in 0..2 {
                sender.push(&cell(number)).unwrap();
                if sender.publish() {
                    theirs.ring();
                }
            }
        });
        for number in 0..2 {
            assert_eq!(take(&mut receiver, &bell, None), cell(number));
        }
        sending.join().unwrap();
        assert_eq!(receiver.pop(), Ok(None));
    });
}

#[test]
fn cells_published_together_arrive_together() {
    model(|| {
        let (mut sender, mut receiver) = Ring::modelled(2, u32::MAX).split();
        let sending = thread::spawn(move || {
            sender.push(&cell(0)).unwrap();
            sender.push(&cell(1)).unwrap();
            let _nobody_sleeps = sender.publish();
        });
        if let Some(first) = receiver.pop().unwrap() {
            assert_eq!((first, receiver.pop()), (cell(0), Ok(Some(cell(1)))));
        }
        sending.join().unwrap();
    });
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    model(|| {
        // One cell, three messages, and the indices wrap between them.
        let (mut sender, mut receiver) = Ring::modelled(1, u32::MAX).split();
        let (something, room) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
        let (rings, waits) = (Arc::clone(&something), Arc::clone(&room));
        let sending = thread::spawn(move || {
            for number in 0..3 {
                put(&mut sender, number, &rings, &waits);
            }
        });
        for number in 0..3 {
            assert_eq!(take(&mut receiver, &something, Some(&room)), cell(number));
        }
        sending.join().unwrap();
    });
}

#[test]
fn a_wait_that_was_called_off_loses_nothing() {
    model(|| {
        let (mut sender, mut receiver) = Ring::modelled(2, 0).split();
        let bell = Arc::new(Bell::default());
        let theirs = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            sender.push(&cell(0)).unwrap();
            if sender.publish() {
                theirs.ring();
            }
        });
        if receiver.prepare_wait() {
            receiver.cancel_wait();
        }
        assert_eq!(take(&mut receiver, &bell, None), cell(0));
        sending.join().unwrap();
    });
}

#[test]
fn a_receiver_that_waits_for_urgent_cells_is_woken_by_one() {
    model(|| {
        let (mut sender, mut receiver) = Ring::modelled(4, 0).split();
        let bell = Arc::new(Bell::default());
        let theirs = Arc::clone(&bell);
        let sending = thread::spawn(move || {
            sender.push(&cell(0)).unwrap();
            if sender.publish_quietly() {
                theirs.ring();
            }
            sender.push(&cell(1)).unwrap();
            if sender.publish() {
                theirs.ring();
            }
        });
        // Armed, looked, slept: as a program that waits for a solicited completion.
        let mut taken = 0;
        while taken < 2 {
            match receiver.pop().unwrap() {
                Some(came) => {
                    assert_eq!(came, cell(taken));
                    taken += 1;
                }
                None => {
                    if receiver.prepare_wait_urgent() {
                        bell.wait();
                    }
                }
            }
        }
        sending.join().unwrap();
    });
}

/// Runs a model. Preemptions are bounded, as loom's manual advises: with 4 all models take seconds, with 6 minutes
/// (`LOOM_MAX_PREEMPTIONS`). The manual's 3 is not enough here: an error in the second sleep only shows with 4.
fn model(story: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(4));
    builder.check(story);
}

fn cell(number: u8) -> [u8; CELL_BYTES] {
    [number + 1; CELL_BYTES]
}

fn put(sender: &mut RingSender, number: u8, something: &Bell, room: &Bell) {
    loop {
        match sender.push(&cell(number)) {
            Ok(()) => break,
            Err(PushError::Full) => {
                if sender.prepare_wait() {
                    room.wait();
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    if sender.publish() {
        something.ring();
    }
}

fn take(receiver: &mut RingReceiver, something: &Bell, room: Option<&Bell>) -> [u8; CELL_BYTES] {
    loop {
        if let Some(cell) = receiver.pop().unwrap() {
            if let Some(room) = room
                && receiver.sender_waits()
            {
                room.ring();
            }
            return cell;
        }
        if receiver.prepare_wait() {
            something.wait();
        }
    }
}
