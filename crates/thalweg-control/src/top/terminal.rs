//! The terminal: taken over by the screen, and given back as it was, whatever ends the program.

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::Rect;
use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Terminal that is taken over. It is given back when this is dropped, and before a panic's message.
#[derive(Debug)]
pub struct Terminal {
    screen: ratatui::Terminal<CrosstermBackend<Stdout>>,
}

impl Terminal {
    /// Takes over the terminal of standard output.
    ///
    /// # Errors
    /// There is none, or it refuses.
    pub fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let former = panic::take_hook();
            panic::set_hook(Box::new(move |panic| {
                give_back();
                former(panic);
            }));
        });
        let screen = ratatui::Terminal::new(CrosstermBackend::new(stdout()))?;
        let terminal = Self { screen };
        take_over()?;
        Ok(terminal)
    }

    /// Draws the screen.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.screen.draw(draw).map(drop)
    }

    /// Gives the terminal back while `work` is done.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn lend_terminal(&mut self, work: impl FnOnce()) -> io::Result<()> {
        give_back();
        work();
        take_over()?;
        // Unlike `clear`, this does not ask the terminal for its cursor, which a slow one answers too late.
        let size = self.screen.size()?;
        self.screen.resize(Rect::new(0, 0, size.width, size.height))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// True while the terminal is taken over.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

fn take_over() -> io::Result<()> {
    IS_TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    // Pasted text comes as such, and not as keys, each of which is a command.
    execute!(stdout(), EnterAlternateScreen, EnableBracketedPaste)
}

/// Gives the terminal back, once: a second time would put the cursor onto a message that was printed since. An error has
/// no remedy.
fn give_back() {
    if !IS_TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = execute!(stdout(), DisableBracketedPaste, LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
