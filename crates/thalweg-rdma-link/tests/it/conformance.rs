//! The stories of [`thalweg_link_conformance`] over both kinds of link.

use std::path::Path;
use thalweg_link::LinkKind;
use thalweg_link_conformance::{Medium, link_conformance};
use thalweg_rdma_link::register_links;

struct OverRdma(LinkKind);

impl Medium for OverRdma {
    fn is_faithful(&self) -> bool {
        !self.0.frames
    }

    /// The RNIC in software copies.
    fn gathers_pieces(&self) -> bool {
        false
    }

    fn link_kind(&self) -> LinkKind {
        self.0
    }

    fn listen_directory(&self) -> &Path {
        Path::new("/")
    }
}

link_conformance!(iwarp, OverRdma(register_links().iwarp));
link_conformance!(efe, OverRdma(register_links().efe));
