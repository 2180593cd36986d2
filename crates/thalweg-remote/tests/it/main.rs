//! The data server's clients, from outside.

mod hostile;
