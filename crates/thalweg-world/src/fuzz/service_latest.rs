//! The latest fragment that a node sends to a service is read, made smaller and shown without a panic, whatever the
//! message; one that is read is written as a message that reads the same.

use thalweg_node::service::latest::LatestAnswer;

/// Tries one input: a width, and a message.
pub fn run(bytes: &[u8]) {
    let Some((width, message)) = bytes.split_first() else { return };
    let Ok(answer) = LatestAnswer::decode_message(&message.to_vec().into()) else { return };
    let mut answers = vec![answer.clone()];
    answers.extend(answer.fragment.map(|fragment| {
        let fragment = fragment.in_columns(u32::from(*width));
        LatestAnswer { id: answer.id, fragment: Some(fragment) }
    }));
    for answer in answers {
        let read = LatestAnswer::decode_message(&answer.encode_message().concat().into()).unwrap();
        assert_eq!(read, answer);
        if let Some(fragment) = read.fragment {
            let shown = fragment.scaled_pixels().is_some() || !fragment.waveforms().is_empty();
            assert!(shown || fragment.numbers.is_empty(), "{:?}", fragment.head);
        }
    }
}
