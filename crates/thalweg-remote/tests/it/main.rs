//! Tests of the data server's clients, through their public interface.

mod hostile;
