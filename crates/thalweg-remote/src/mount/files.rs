//! Answers the kernel's requests: the shell between [`fuser`] and the [tree](super::tree).

use super::ahead::{Memory, Piece, Plan, ReadAhead};
use super::tree::{DirectoryContent, Node, NodeKind, PROPERTY_TTL, Tree};
use super::{Counters, OnEnd};
use crate::Server;
use crate::listing::Kind;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A server's files, as the kernel sees them.
#[derive(Debug)]
pub(super) struct Files {
    tree: Arc<Tree>,
    counters: Arc<Counters>,
    memory: Memory,
    streams: u64,
    /// Queue of pieces to fetch ahead.
    wanted: Sender<Wanted>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    last_handle: AtomicU64,
    on_end: OnEnd,
    owner: (u32, u32),
}

/// A file or directory that a program has open.
#[derive(Debug)]
enum Handle {
    /// A directory, as it was when it was opened.
    Directory(Arc<DirectoryContent>),
    File(Arc<Node>, Mutex<Reading>),
}

/// State of reading an open file.
#[derive(Debug)]
struct Reading {
    ahead: ReadAhead,
    last: Instant,
}

/// A piece to fetch, with its file.
type Wanted = (Arc<Node>, Arc<Piece>);
/// A buffer, and the range of it to return.
type Part = (Arc<Vec<u8>>, Range<usize>);

impl Files {
    pub(super) fn new(server: &Server, streams: usize, counters: Arc<Counters>, on_end: OnEnd) -> io::Result<Self> {
        let tree = Arc::new(Tree::new(server, Arc::clone(&counters)));
        let (wanted, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..streams.max(1) {
            let (tree, queue) = (Arc::clone(&tree), Arc::clone(&queue));
            std::thread::Builder::new().name("ahead".into()).spawn(move || fetch_queued_pieces(&tree, &queue))?;
        }
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        Ok(Self {
            tree,
            counters,
            memory: Memory::default(),
            streams: streams.max(1) as u64,
            wanted,
            handles: Mutex::default(),
            last_handle: AtomicU64::new(0),
            on_end,
            owner,
        })
    }

    fn find_entry(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        // A server's names are UTF-8.
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        Ok(self.file_attributes(&*self.tree.lookup_name(&self.tree.node_by_number(parent.0)?, name)?))
    }

    fn current_attributes(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        let node = self.tree.node_by_number(number.0)?;
        if let NodeKind::File(_) = node.kind {
            self.tree.refresh_properties(&node)?;
        }
        Ok(self.file_attributes(&node))
    }

    /// Returns the attributes that `stat` shows.
    fn file_attributes(&self, node: &Node) -> FileAttr {
        let (kind, perm, (size, modified)) = match &node.kind {
            NodeKind::Directory { modified, .. } => (FileType::Directory, 0o555, (0, *modified)),
            NodeKind::File(content) => (FileType::RegularFile, 0o444, content.lock().length_and_time()),
        };
        let time: SystemTime = modified.unwrap_or(UNIX_EPOCH);
        let (uid, gid) = self.owner;
        FileAttr {
            ino: INodeNo(node.number),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn open_file_handle(&self, number: INodeNo) -> Result<u64, Errno> {
        let node = self.tree.node_by_number(number.0)?;
        self.tree.check_on_open(&node)?;
        self.counters.opened.fetch_add(1, Relaxed);
        Ok(self
            .insert_handle(Handle::File(node, Mutex::new(Reading { ahead: ReadAhead::new(), last: Instant::now() }))))
    }

    fn open_directory_handle(&self, number: INodeNo) -> Result<u64, Errno> {
        let listed = self.tree.directory_content(&*self.tree.node_by_number(number.0)?)?;
        Ok(self.insert_handle(Handle::Directory(listed)))
    }

    fn insert_handle(&self, handle: Handle) -> u64 {
        let number = self.last_handle.fetch_add(1, Relaxed);
        self.handles.lock().insert(number, Arc::new(handle));
        number
    }

    fn find_handle(&self, handle: FileHandle) -> Result<Arc<Handle>, Errno> {
        self.handles.lock().get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    /// Reads the bytes of a file from `offset` on, in parts; fewer than asked for only at its end.
    fn read_parts(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<Part>, Errno> {
        let handle = self.find_handle(handle)?;
        let Handle::File(node, reading) = &*handle else { return Err(Errno::EISDIR) };
        let length = node.length_bytes();
        let range = offset..length.min(offset.saturating_add(size.into()));
        if range.is_empty() {
            return Ok(Vec::new());
        }
        if self.memory.is_nearly_full() {
            self.reclaim_memory();
        }
        let plan = {
            let mut reading = reading.lock();
            reading.last = Instant::now();
            reading.ahead.plan_read(&range, length, self.streams, &self.memory)
        };
        let (pieces, new) = match plan {
            Plan::Alone => {
                let bytes = self.tree.fetch_range(node, range)?;
                let whole = 0..bytes.len();
                return Ok(vec![(Arc::new(bytes), whole)]);
            }
            Plan::InOrder(pieces, new) => (pieces, new),
        };
        for piece in new {
            // The receiving threads live as long as `self`.
            let _ = self.wanted.send((Arc::clone(node), piece));
        }
        let parts = pieces.iter().map(|piece| Ok((piece.wait_for_bytes()?, piece.part_in_range(&range))));
        parts.collect::<Result<_, _>>().inspect_err(|_| reading.lock().ahead.drop_pieces())
    }

    /// Makes files that are not being read at the moment drop the pieces fetched ahead.
    fn reclaim_memory(&self) {
        for handle in self.handles.lock().values() {
            if let Handle::File(_, reading) = &**handle
                && let Some(mut reading) = reading.try_lock()
                && reading.last.elapsed() > PROPERTY_TTL
            {
                reading.ahead.drop_pieces();
            }
        }
    }

    /// Fills `reply` with the content of a directory, from the `offset`th name on.
    fn list_names(
        &self,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<(), Errno> {
        let handle = self.find_handle(handle)?;
        let Handle::Directory(listed) = &*handle else { return Err(Errno::ENOTDIR) };
        let parent = self.tree.node_by_number(number.0)?.parent_inode();
        let dots = [(number, FileType::Directory, "."), (INodeNo(parent), FileType::Directory, "..")];
        let entries = listed.entries.iter().map(|entry| {
            let kind = if entry.kind == Kind::File { FileType::RegularFile } else { FileType::Directory };
            (UNNUMBERED, kind, entry.name.as_str())
        });
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (number, kind, name)) in dots.into_iter().chain(entries).enumerate().skip(offset) {
            if reply.add(number, place as u64 + 1, kind, name) {
                break;
            }
        }
        Ok(())
    }

    /// Counts an error that is returned to a program.
    fn count_error(&self, errno: Errno) -> Errno {
        if errno != Errno::ENOENT {
            self.counters.errors.fetch_add(1, Relaxed);
        }
        errno
    }
}

impl Filesystem for Files {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Older kernels lack some of these, and work without.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        let _ = config.set_max_background(MAX_BACKGROUND_READS);
        Ok(())
    }

    fn destroy(&mut self) {
        self.on_end.report_unmounted();
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find_entry(parent, name) {
            Ok(shown) => reply.entry(&PROPERTY_TTL, &shown, Generation(0)),
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.tree.forget_lookups(number.0, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.current_attributes(number) {
            Ok(shown) => reply.attr(&PROPERTY_TTL, &shown),
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_file_handle(number) {
            // A node is one content, so the kernel's pages of it are right. Reading goes through its cache, not
            // directly: only then a file can be mapped, is read ahead, and costs nothing when it is read again.
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE),
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.counters.reads.fetch_add(1, Relaxed);
        match self.read_parts(handle, offset, size) {
            Ok(parts) => {
                let bytes = parts.iter().map(|(_, part)| part.len() as u64).sum();
                self.counters.read_bytes.fetch_add(bytes, Relaxed);
                match &parts[..] {
                    [(bytes, part)] => reply.data(&bytes[part.clone()]),
                    parts => {
                        let slices: Vec<&[u8]> = parts.iter().map(|(bytes, part)| &bytes[part.clone()]).collect();
                        reply.data(&slices.concat());
                    }
                }
            }
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.lock().remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_directory_handle(number) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn readdir(&self, _: &Request, number: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.list_names(number, handle, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(self.count_error(errno)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.lock().remove(&handle.0);
        reply.ok();
    }
}

/// Fetches queued pieces until the file system is gone.
fn fetch_queued_pieces(tree: &Tree, queue: &Mutex<Receiver<Wanted>>) {
    loop {
        let Ok((node, piece)) = queue.lock().recv() else { return };
        piece.fill_with(|range| tree.fetch_range(&node, range));
    }
}

/// Inode number of an entry that is listed and was not looked up: libfuse's `FUSE_UNKNOWN_INO`.
const UNNUMBERED: INodeNo = INodeNo(0xffff_ffff);
/// Maximum number of concurrent reads that no program waits for yet: the kernel's own read-ahead, for all files.
const MAX_BACKGROUND_READS: u16 = 64;
