//! Tables of the RNIC's objects, by handles that are not soon given again.

/// Bits of a handle that are the place in the table.
const INDEX_BITS: u32 = 16;

/// Generations of a place: as many as fit into a handle of 24 bits, the width of a queue pair's number.
const GENERATIONS: u32 = 1 << (24 - INDEX_BITS);

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: std::collections::VecDeque<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: std::collections::VecDeque::new() }
    }
}

impl<T> Slots<T> {
    /// Adds an object and returns its handle, which is not 0; `None` if the table is full.
    pub(crate) fn insert_object(&mut self, object: T) -> Option<u32> {
        // A place that was given up is used again late, so that its old handles are found out.
        let reuse = self.free.len() > 64 || self.slots.len() >= 1 << INDEX_BITS;
        let index = match if reuse { self.free.pop_front() } else { None } {
            Some(index) => index,
            None if self.slots.len() < 1 << INDEX_BITS => {
                self.slots.push((1, None));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let (generation, slot) = &mut self.slots[index as usize];
        *slot = Some(object);
        Some(*generation << INDEX_BITS | index)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let index = handle & ((1 << INDEX_BITS) - 1);
        let (generation, slot) = self.slots.get_mut(index as usize)?;
        if *generation != handle >> INDEX_BITS {
            return None;
        }
        let object = slot.take()?;
        self.give_up(handle);
        Some(object)
    }

    /// Takes an object out whose place is kept: it is [put back](Self::put_back), or its place [given up](Self::give_up).
    pub(crate) fn take(&mut self, handle: u32) -> Option<T> {
        let (generation, slot) = self.slots.get_mut((handle & ((1 << INDEX_BITS) - 1)) as usize)?;
        if *generation == handle >> INDEX_BITS { slot.take() } else { None }
    }

    /// Puts an object back into the place that it was taken out of.
    pub(crate) fn put_back(&mut self, handle: u32, object: T) {
        if let Some((_, slot)) = self.slots.get_mut((handle & ((1 << INDEX_BITS) - 1)) as usize) {
            *slot = Some(object);
        }
    }

    /// Gives up the place of an object that was taken out.
    pub(crate) fn give_up(&mut self, handle: u32) {
        let index = handle & ((1 << INDEX_BITS) - 1);
        if let Some((generation, _)) = self.slots.get_mut(index as usize) {
            *generation = *generation % (GENERATIONS - 1) + 1;
            self.free.push_back(index);
        }
    }

    #[inline]
    pub(crate) fn get(&self, handle: u32) -> Option<&T> {
        let (generation, slot) = self.slots.get((handle & ((1 << INDEX_BITS) - 1)) as usize)?;
        slot.as_ref().filter(|_| *generation == handle >> INDEX_BITS)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, handle: u32) -> Option<&mut T> {
        let (generation, slot) = self.slots.get_mut((handle & ((1 << INDEX_BITS) - 1)) as usize)?;
        slot.as_mut().filter(|_| *generation == handle >> INDEX_BITS)
    }

    /// Returns all handles and objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let handles = self.slots.iter().enumerate();
        handles
            .filter_map(|(index, (generation, slot))| Some((generation << INDEX_BITS | index as u32, slot.as_ref()?)))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let handles = self.slots.iter_mut().enumerate();
        handles
            .filter_map(|(index, (generation, slot))| Some((*generation << INDEX_BITS | index as u32, slot.as_mut()?)))
    }

    /// Returns the handle in a place, for walks that change the table; `None` if the place is empty.
    pub(crate) fn handle_at(&self, index: usize) -> Option<u32> {
        let (generation, slot) = self.slots.get(index)?;
        slot.as_ref().map(|_| *generation << INDEX_BITS | index as u32)
    }

    /// Returns the number of places, empty ones included.
    pub(crate) fn place_count(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_object_and_none_after_it() {
        let mut slots = Slots::default();
        let mut old = Vec::new();
        for number in 0..1000 {
            let handle = slots.insert_object(number).unwrap();
            assert!(handle != 0 && handle < 1 << 24);
            assert_eq!(slots.get(handle), Some(&number));
            assert_eq!(slots.remove(handle), Some(number));
            assert_eq!((slots.remove(handle), slots.get(handle)), (None, None));
            assert!(!old.contains(&handle), "given again at once");
            old.push(handle);
        }
        assert!(slots.place_count() <= 70);
    }

    #[test]
    fn a_full_table_refuses_and_has_room_again() {
        let mut slots = Slots::default();
        let handles: Vec<_> = (0..1 << 16).map(|number| slots.insert_object(number).unwrap()).collect();
        assert_eq!(slots.insert_object(0), None);
        slots.remove(handles[17]).unwrap();
        assert!(slots.insert_object(0).is_some());
        assert_eq!(slots.iter().count(), 1 << 16);
    }
}
