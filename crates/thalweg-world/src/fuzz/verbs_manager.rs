//! Commands that a program writes to the connection manager of verbs: whatever the bytes are, they are a command or are refused.

/// Takes the input for a command.
pub fn run(input: &[u8]) {
    thalweg_verbs_provider::check_command(input);
}
