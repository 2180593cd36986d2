//! Content of a server as the file system sees it: numbered nodes, with properties cached for a moment.

use super::Counters;
use crate::listing::{Kind, Listing};
use crate::{Entry, Head, RemoteError, Server};
use fuser::Errno;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use thalweg_store::RunState;

/// Time for which properties are trusted, here and by the kernel. A run being recorded is seen to grow this often.
pub(super) const PROPERTY_TTL: Duration = Duration::from_secs(1);

/// The nodes that the kernel knows.
#[derive(Debug)]
pub(super) struct Tree {
    link: Link,
    counters: Arc<Counters>,
    table: Mutex<Table>,
}

/// A directory, or one content of a file.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) number: u64,
    /// Path on the server; empty for the tree itself.
    path: String,
    parent: Option<Arc<Node>>,
    depth: u32,
    pub(super) kind: NodeKind,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Directory {
        modified: Option<SystemTime>,
        /// Content of the directory, and when it was seen.
        listed: Mutex<Option<(Instant, Arc<DirectoryContent>)>>,
    },
    File(Mutex<Content>),
}

/// Content of a directory, in ascending order of names.
#[derive(Debug)]
pub(super) struct DirectoryContent {
    pub(super) entries: Vec<Entry>,
    /// True for a run that is being recorded.
    is_recorded: bool,
}

/// Known properties of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    length: u64,
    modified: Option<SystemTime>,
    /// Time at which a segment that is being written was last seen: it gets longer, and existing bytes stay the same.
    grows: Option<Instant>,
    /// Tag that distinguishes this content from any other, if the server has one and was asked.
    etag: Option<String>,
    /// True if the server's file is another one by now, or gone.
    stale: bool,
}

impl Tree {
    pub(super) fn new(server: &Server, counters: Arc<Counters>) -> Self {
        let kind = NodeKind::Directory { modified: Some(SystemTime::now()), listed: Mutex::default() };
        let root = Node { number: ROOT_INODE, path: String::new(), parent: None, depth: 0, kind };
        let known = HashMap::from([(ROOT_INODE, (Arc::new(root), 1))]);
        let table = Table { known, by_path: HashMap::new(), last: ROOT_INODE };
        Self { link: Link::new(server), counters, table: table.into() }
    }

    /// Returns the node of this number. The kernel uses only numbers that it was given.
    pub(super) fn node_by_number(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.lock_table().known.get(&number).map(|(node, _)| Arc::clone(node)).ok_or(Errno::ESTALE)
    }

    /// Looks up `name` in a directory. The kernel knows the node until it [forgets](Self::forget_lookups) it as many
    /// times.
    pub(super) fn lookup_name(&self, parent: &Arc<Node>, name: &str) -> Result<Arc<Node>, Errno> {
        // Such names are never listed, so the server is not asked.
        if !crate::listing::is_plain_name(name) {
            return Err(Errno::ENOENT);
        }
        let listed = self.directory_content(parent)?;
        let entry = listed.find_entry(name).ok_or(Errno::ENOENT)?;
        let path = join_path(&parent.path, name);
        let before = self.lock_table().newest_node_at(&path);
        let seen = match entry.kind {
            Kind::File => Some(self.current_content(&listed, entry, &path, before.as_deref())?),
            Kind::Directory | Kind::Run => None,
            Kind::Other => return Err(Errno::ENOENT),
        };
        let mut table = self.lock_table();
        // Another thread may have been faster.
        if let Some(node) = table.newest_node_at(&path).filter(|node| node.agrees_with_content(seen.as_ref())) {
            table.known.entry(node.number).and_modify(|(_, lookups)| *lookups += 1);
            return Ok(node);
        }
        let kind = match seen {
            Some(content) => NodeKind::File(content.into()),
            None => NodeKind::Directory { modified: modification_time(entry), listed: Mutex::default() },
        };
        table.last += 1;
        let (number, depth) = (table.last, parent.depth + 1);
        let node = Arc::new(Node { number, path: path.clone(), parent: Some(Arc::clone(parent)), depth, kind });
        table.known.insert(number, (Arc::clone(&node), 1));
        table.by_path.insert(path, number);
        Ok(node)
    }

    pub(super) fn forget_lookups(&self, number: u64, lookups: u64) {
        let mut table = self.lock_table();
        let Some((node, left)) = table.known.get_mut(&number) else { return };
        *left = left.saturating_sub(lookups);
        if *left == 0 && number != ROOT_INODE {
            let path = node.path.clone();
            table.known.remove(&number);
            if table.by_path.get(&path) == Some(&number) {
                table.by_path.remove(&path);
            }
        }
    }

    /// Returns the content of a directory.
    pub(super) fn directory_content(&self, node: &Node) -> Result<Arc<DirectoryContent>, Errno> {
        let NodeKind::Directory { listed, .. } = &node.kind else { return Err(Errno::ENOTDIR) };
        if node.depth > MAX_DIRECTORY_DEPTH {
            return Err(Errno::ELOOP);
        }
        // Other threads that need it wait for the same answer.
        let mut kept = listed.lock();
        if let Some((seen, listed)) = kept.as_ref()
            && seen.elapsed() < PROPERTY_TTL
        {
            return Ok(Arc::clone(listed));
        }
        let listing = self.link.send_request(|server| server.list_directory(&node.path));
        let listed = Arc::new(DirectoryContent::new(listing.map_err(Errno::from)?));
        *kept = Some((Instant::now(), Arc::clone(&listed)));
        Ok(listed)
    }

    /// Updates the properties of a file if they are older than [`PROPERTY_TTL`].
    pub(super) fn refresh_properties(&self, node: &Node) -> Result<(), Errno> {
        let Some(parent) = &node.parent else { return Ok(()) };
        let listed = self.directory_content(parent)?;
        let entry = listed.find_entry(node.last_name()).filter(|entry| entry.kind == Kind::File);
        match entry.map(|entry| self.current_content(&listed, entry, &node.path, Some(node))).transpose() {
            Ok(Some(seen)) if node.agrees_with_content(Some(&seen)) => Ok(()),
            Ok(_) | Err(Errno::ENOENT) => Err(self.mark_stale(node)),
            Err(errno) => Err(errno),
        }
    }

    /// Checks that a file is still the content that the kernel knows. After `ESTALE`, the kernel looks it up again,
    /// once.
    pub(super) fn check_on_open(&self, node: &Node) -> Result<(), Errno> {
        let NodeKind::File(content) = &node.kind else { return Err(Errno::EISDIR) };
        if !content.lock().is_growing_segment() {
            let head = match self.link.send_request(|server| server.fetch_head(&node.path)) {
                Ok(head) => head,
                Err(Failure::Gone | Failure::Changed) => return Err(self.mark_stale(node)),
                Err(failure) => return Err(failure.into()),
            };
            let seen = Content { etag: head.etag, ..Content::new(head.length, head.modified) };
            if !node.agrees_with_content(Some(&seen)) {
                return Err(self.mark_stale(node));
            }
        }
        Ok(())
    }

    /// Reads a range of a file, all of which exists.
    pub(super) fn fetch_range(&self, node: &Node, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        let NodeKind::File(content) = &node.kind else { return Err(Errno::EISDIR) };
        let content = content.lock().clone();
        if content.stale {
            return Err(Errno::ESTALE);
        }
        match self.link.send_request(|server| content.read_range(server, &node.path, range.clone())) {
            Ok(bytes) => {
                self.counters.fetched_bytes.fetch_add(bytes.len() as u64, Relaxed);
                Ok(bytes)
            }
            Err(Failure::Gone | Failure::Changed) => Err(self.mark_stale(node)),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Returns the content of a listed file. A growing file is asked for separately, since the listing's length is too
    /// large.
    fn current_content(
        &self,
        listed: &DirectoryContent,
        entry: &Entry,
        path: &str,
        node: Option<&Node>,
    ) -> Result<Content, Errno> {
        if !listed.is_recorded || !entry.name.ends_with(".seg") {
            return Ok(Content::new(entry.bytes, modification_time(entry)));
        }
        if let Some(NodeKind::File(content)) = node.map(|node| &node.kind) {
            let content = content.lock();
            if content.grows.is_some_and(|seen| seen.elapsed() < PROPERTY_TTL) && !content.stale {
                return Ok(content.clone());
            }
        }
        let head = self.link.send_request(|server| server.fetch_head(path)).map_err(Errno::from)?;
        // Servers send no date for a file that may change within the same second.
        let modified = head.modified.or_else(|| modification_time(entry));
        Ok(Content { grows: Some(Instant::now()), ..Content::new(head.length, modified) })
    }

    /// Marks the node as outdated: the next lookup finds another one.
    fn mark_stale(&self, node: &Node) -> Errno {
        if let NodeKind::File(content) = &node.kind {
            content.lock().stale = true;
        }
        if let Some(NodeKind::Directory { listed, .. }) = node.parent.as_ref().map(|parent| &parent.kind) {
            *listed.lock() = None;
        }
        Errno::ESTALE
    }

    fn lock_table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Node {
    fn last_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Returns whether the node is the content seen in its place; a growing file takes over the new properties.
    fn agrees_with_content(&self, seen: Option<&Content>) -> bool {
        match (&self.kind, seen) {
            (NodeKind::Directory { .. }, None) => true,
            (NodeKind::File(content), Some(seen)) => content.lock().update_if_same(seen),
            _ => false,
        }
    }

    /// Returns the number of the directory that contains the node.
    pub(super) fn parent_inode(&self) -> u64 {
        self.parent.as_ref().map_or(ROOT_INODE, |parent| parent.number)
    }

    /// Returns the length in bytes, as far as known.
    pub(super) fn length_bytes(&self) -> u64 {
        match &self.kind {
            NodeKind::Directory { .. } => 0,
            NodeKind::File(content) => content.lock().length,
        }
    }
}

impl DirectoryContent {
    fn new(listing: Listing) -> Self {
        let is_recorded = listing.info.is_some_and(|info| info.state == RunState::Open);
        let mut entries = listing.entries;
        entries.retain(|entry| entry.kind != Kind::Other);
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Self { entries, is_recorded }
    }

    fn find_entry(&self, name: &str) -> Option<&Entry> {
        let place = self.entries.binary_search_by(|entry| entry.name.as_str().cmp(name)).ok()?;
        self.entries.get(place)
    }
}

impl Content {
    fn new(length: u64, modified: Option<SystemTime>) -> Self {
        Self { length, modified, grows: None, etag: None, stale: false }
    }

    /// Returns the length in bytes and the time of the last change.
    pub(super) fn length_and_time(&self) -> (u64, Option<SystemTime>) {
        (self.length, self.modified)
    }

    fn is_growing_segment(&self) -> bool {
        self.grows.is_some()
    }

    fn known_head(&self) -> Head {
        Head { length: self.length, etag: self.etag.clone(), modified: self.modified, crc32c: None }
    }

    /// Takes over the properties `seen` if they describe the same content.
    fn update_if_same(&mut self, seen: &Self) -> bool {
        let same = if self.is_growing_segment() {
            seen.length >= self.length
        } else {
            !seen.is_growing_segment() && !self.known_head().contradicts_head(&seen.known_head())
        };
        if self.stale || !same {
            return false;
        }
        self.length = seen.length;
        self.modified = seen.modified.or(self.modified);
        self.grows = seen.grows;
        self.etag = self.etag.take().or_else(|| seen.etag.clone());
        true
    }

    fn read_range(&self, server: &Server, path: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
        let begun = Instant::now();
        let same = (!self.is_growing_segment()).then(|| self.known_head());
        let mut reader = server.open_reader(path, range.clone(), same.as_ref())?;
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        let mut filled = 0;
        while filled < bytes.len() {
            match reader.read(&mut bytes[filled..]) {
                Ok(0) => return Err(RemoteError::Changed(server.url_of_resource(path))),
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(reader.original_error(error)),
            }
            if begun.elapsed() > RANGE_TIMEOUT {
                return Err(RemoteError::Answer {
                    url: server.url_of_resource(path),
                    what: "a few bytes took longer than two minutes",
                });
            }
        }
        Ok(bytes)
    }
}

/// The nodes, by their numbers and paths.
#[derive(Debug)]
struct Table {
    /// Nodes by number, each with the number of lookups by the kernel.
    known: HashMap<u64, (Arc<Node>, u64)>,
    /// Number of the newest node of each path.
    by_path: HashMap<String, u64>,
    last: u64,
}

impl Table {
    fn newest_node_at(&self, path: &str) -> Option<Arc<Node>> {
        self.known.get(self.by_path.get(path)?).map(|(node, _)| Arc::clone(node))
    }
}

/// Connection to the server, with patience while it is reachable. After the server was unreachable for too long, every
/// request fails after one attempt until it answers again: a program that reads a thousand files does not wait a
/// thousand times.
#[derive(Debug)]
struct Link {
    patient: Server,
    hasty: Server,
    is_down: AtomicBool,
    /// Last warning, so that it is not repeated.
    last_warning: Mutex<String>,
}

/// Error as reported to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Gone,
    Changed,
    Forbidden,
    Broken,
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Gone => Self::ENOENT,
            Failure::Changed => Self::ESTALE,
            Failure::Forbidden => Self::EACCES,
            Failure::Broken => Self::EIO,
        }
    }
}

impl Link {
    fn new(server: &Server) -> Self {
        let (patient, hasty) = (server.clone(), server.with_timeout(Duration::ZERO));
        Self { patient, hasty, is_down: AtomicBool::new(false), last_warning: Mutex::default() }
    }

    fn send_request<T>(&self, act: impl Fn(&Server) -> Result<T, RemoteError>) -> Result<T, Failure> {
        let server = if self.is_down.load(Relaxed) { &self.hasty } else { &self.patient };
        let result = act(server);
        let is_down = result.as_ref().is_err_and(RemoteError::is_transient);
        if self.is_down.swap(is_down, Relaxed) && !is_down {
            tracing::warn!("{} responds again", self.patient.url_of_resource(""));
        }
        result.map_err(|error| self.classify_error(&error))
    }

    fn classify_error(&self, error: &RemoteError) -> Failure {
        let failure = match error {
            error if error.is_not_found() => Failure::Gone,
            RemoteError::Changed(_) | RemoteError::Directory(_) => Failure::Changed,
            RemoteError::Status { status: 401 | 403, .. } => Failure::Forbidden,
            _ => Failure::Broken,
        };
        if failure != Failure::Gone {
            let text = error.to_string();
            let mut last_warning = self.last_warning.lock();
            if *last_warning != text {
                tracing::warn!("{}", text.escape_debug());
                *last_warning = text;
            }
        }
        failure
    }
}

fn join_path(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn modification_time(entry: &Entry) -> Option<SystemTime> {
    humantime::parse_rfc3339(&entry.modified).ok()
}

/// Number of the root node.
const ROOT_INODE: u64 = fuser::INodeNo::ROOT.0;
/// Maximum depth of nested directories.
const MAX_DIRECTORY_DEPTH: u32 = 64;
/// Time limit for a range whose bytes keep arriving, so that a trickle does not block a program for hours.
const RANGE_TIMEOUT: Duration = Duration::from_secs(120);
