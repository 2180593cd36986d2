//! TCP congestion controls for a running kernel.
//!
//! The programs in `bpf/` are BPF `struct_ops`: they are loaded into a kernel that has no module for them, and cannot
//! crash it. A loaded program stays until it is unloaded or the machine restarts: no process needs to hold it, and no
//! file system is needed. Each is tested against the kernel's own module of that name, see `docs/congestion.md`.
//!
//! The objects in this library are GPL-2.0-only, as their sources are; the library itself is not. They reach the kernel
//! as data, the way firmware reaches a device.

mod kernel;
mod load;

pub use kernel::{Kernel, Standing};
pub use load::{LoadError, Loaded, UnloadError, load_control, unload_control};

/// Returns the bytes that `build.rs` compiled from `bpf/NAME.c`, aligned as the reader of ELF files expects it.
macro_rules! object {
    ($name:literal) => {{
        #[repr(align(8))]
        struct Aligned<T: ?Sized>(T);
        static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".o")));
        &OBJECT.0
    }};
}

/// A congestion control that can be loaded.
#[derive(Debug)]
pub struct Control {
    /// Name by which a program selects it: `TCP_CONGESTION`, a source's `congestion`.
    pub name: &'static str,
    /// Description, in a few words.
    pub about: &'static str,
    /// Paper or standard that it implements.
    pub source: &'static str,
    object: &'static [u8],
}

/// Returns the control of this name, or `None`.
pub fn find_control(name: &str) -> Option<&'static Control> {
    CONTROLS.iter().find(|control| control.name == name)
}

/// All controls of this crate, Thalweg's own first.
pub static CONTROLS: [Control; 10] = [
    Control {
        name: "thalweg",
        about: "the window follows the builder's credit; for a source's connection to its builder only",
        source: "Thalweg",
        object: object!("thalweg"),
    },
    Control {
        name: "bic",
        about: "searches by halves for the window at which the last loss was",
        source: "Xu, Harfoush, Rhee, INFOCOM 2004",
        object: object!("bic"),
    },
    Control {
        name: "highspeed",
        about: "the larger the window, the faster it grows and the less it falls",
        source: "Floyd, RFC 3649",
        object: object!("highspeed"),
    },
    Control {
        name: "htcp",
        about: "grows the faster the longer nothing was lost",
        source: "Leith, Shorten, PFLDnet 2004",
        object: object!("htcp"),
    },
    Control {
        name: "hybla",
        about: "a long round trip grows its window as a short one would",
        source: "Caini, Firrincieli, IJSCN 22(5), 2004",
        object: object!("hybla"),
    },
    Control {
        name: "lp",
        about: "low priority: takes what others leave",
        source: "Kuzmanovic, Knightly, ToN 14(4), 2006",
        object: object!("lp"),
    },
    Control {
        name: "scalable",
        about: "one packet more for every hundred, an eighth less for a loss",
        source: "Kelly, CCR 33(2), 2003",
        object: object!("scalable"),
    },
    Control {
        name: "vegas",
        about: "keeps two to four packets in queues, by round-trip times",
        source: "Brakmo, Peterson, JSAC 13(8), 1995",
        object: object!("vegas"),
    },
    Control {
        name: "veno",
        about: "as vegas sees few packets in queues, a loss is the link's: falls by a fifth only",
        source: "Fu, Liew, JSAC 21(2), 2003",
        object: object!("veno"),
    },
    Control {
        name: "westwood",
        about: "after a loss, the window is the measured rate times the smallest round trip",
        source: "Mascolo, Casetti, Gerla et al., MobiCom 2001",
        object: object!("westwood"),
    },
];
