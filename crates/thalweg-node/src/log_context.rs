//! Node and run that a line of the log is about: those of the thread that writes it, or of its process.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// Node and run of a line of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogContext {
    /// Name of the node.
    pub node: Option<Arc<str>>,
    /// Number of the run under way, or of the last one.
    pub run: Option<u32>,
}

thread_local! {
    static CONTEXT: RefCell<LogContext> = RefCell::default();
}

static PROCESS_NODE: OnceLock<Arc<str>> = OnceLock::new();

/// Sets the node of all threads of this process that have none of their own: it is the only node of the process. The
/// first one counts.
pub fn set_process_node(node: &str) {
    PROCESS_NODE.get_or_init(|| node.into());
}

/// Returns the node and the run of this thread.
pub fn current_context() -> LogContext {
    // While a thread is being taken down, there is none.
    let context = CONTEXT.try_with(|context| context.borrow().clone()).unwrap_or_default();
    LogContext { node: context.node.or_else(|| PROCESS_NODE.get().cloned()), ..context }
}

/// Does a node's work with the lines of the log in its name.
pub(crate) fn with_node<T>(node: &str, work: impl FnOnce() -> T) -> T {
    let before = CONTEXT.replace(LogContext { node: Some(node.into()), run: None });
    let result = work();
    CONTEXT.set(before);
    result
}

/// Sets the run of this thread's node.
pub(crate) fn set_run(run: u32) {
    CONTEXT.with_borrow_mut(|context| context.run = Some(run));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_node_that_it_works_for_and_its_run() {
        let name = || current_context().node.map(|node| node.to_string());
        with_node("adc-0", || {
            set_run(7);
            assert_eq!((name().as_deref(), current_context().run), (Some("adc-0"), Some(7)));
            std::thread::scope(|scope| scope.spawn(|| assert_eq!(current_context().run, None)).join().unwrap());
        });
        assert_eq!((name(), current_context().run), (None, None));
        set_process_node("builder");
        set_process_node("another");
        assert_eq!(name().as_deref(), Some("builder"));
        with_node("adc-1", || assert_eq!(name().as_deref(), Some("adc-1")));
    }
}
