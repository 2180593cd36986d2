//! The three verbs, offer, fetch and release, over shared memory and TCP
