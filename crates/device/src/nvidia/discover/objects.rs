//! The objects of a client, found by asking for their names.

use std::collections::BTreeMap;

use crate::nvidia::abi::class;
use crate::nvidia::rm::Handle;

/// Where libcuda's names of objects begin.
pub(super) const OBJECTS_FROM: Handle = 0x5c00_0000;
/// No program has more.
const OBJECTS_MAX: u32 = 0x1_0000;
/// The search ends when that many names in a row are unused.
const UNUSED_MAX: u32 = 0x200;
/// How many names are one question apart where nothing is expected.
const SKIPPED: u32 = 8;
/// How far before the first one that is met others may be that belong to it.
const BEFORE: u32 = 0x80;

/// One object of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) class: u32,
    pub(super) parent: Handle,
}

/// The client is gone: its program ends, or resets its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// Asks for one name after the other until long enough nobody answers. If nothing that runs was
/// found by then, asks further, for every few names only: whoever has reset its device before has
/// left the first names behind.
pub(super) fn objects(
    mut ask: impl FnMut(Handle) -> Result<Option<Object>, Gone>,
) -> Result<BTreeMap<Handle, Object>, Gone> {
    let mut found = BTreeMap::new();
    let mut next = run_of_objects(OBJECTS_FROM, &mut ask, &mut found)?;
    let has_groups = |found: &BTreeMap<Handle, Object>| {
        found.values().any(|object| object.class == class::GROUP)
    };
    if found.is_empty() || has_groups(&found) {
        return Ok(found);
    }
    while next < OBJECTS_FROM + OBJECTS_MAX {
        // What belongs together is made in a row, so a few names are enough to meet it.
        next = match ask(next)? {
            Some(_) => run_of_objects(next - BEFORE, &mut ask, &mut found)?,
            None => next + SKIPPED,
        };
    }
    Ok(found)
}

/// Asks for names in a row until long enough nobody answers. Returns where it ended.
fn run_of_objects(
    from: Handle,
    ask: &mut impl FnMut(Handle) -> Result<Option<Object>, Gone>,
    found: &mut BTreeMap<Handle, Object>,
) -> Result<Handle, Gone> {
    let (mut next, mut unused) = (from, 0);
    while next < OBJECTS_FROM + OBJECTS_MAX && unused < UNUSED_MAX {
        match ask(next)? {
            Some(object) => {
                found.insert(next, object);
                unused = 0;
            }
            None => unused += 1,
        }
        next += 1;
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::super::arrange;
    use super::super::tests::{CLIENT, cuda_process};
    use super::*;

    #[test]
    fn the_search_goes_over_holes_and_ends() {
        let known = cuda_process();
        let mut asked = 0;
        let found = objects(|handle| {
            asked += 1;
            Ok(known.get(&handle).copied())
        });
        assert_eq!(found, Ok(known));
        assert_eq!(asked, 0x53 + UNUSED_MAX + 1);
    }

    #[test]
    fn a_context_after_many_resets_is_found() {
        let mut known: BTreeMap<Handle, Object> =
            cuda_process().into_iter().filter(|(name, _)| *name < OBJECTS_FROM + 3).collect();
        let far = 0x3e85;
        for (name, object) in cuda_process() {
            if name > OBJECTS_FROM + 2 {
                let moved = |handle: Handle| match handle > OBJECTS_FROM + 2 {
                    true if handle < OBJECTS_FROM + 0x100 => handle + far,
                    _ => handle,
                };
                let parent = moved(object.parent);
                known.insert(moved(name), Object { parent, ..object });
            }
        }
        let mut asked = 0;
        let found = objects(|handle| {
            asked += 1;
            Ok(known.get(&handle).copied())
        });
        assert_eq!(found, Ok(known.clone()));
        assert!(asked < 0x10000 / 4, "{asked}");
        let client = arrange(CLIENT, &known).unwrap();
        assert_eq!(client.devices[0].contexts().count(), 1);
    }

    #[test]
    fn a_client_that_goes_away_is_not_asked_again() {
        let mut asked = 0;
        let found = objects(|_| {
            asked += 1;
            if asked == 5 { Err(Gone) } else { Ok(None) }
        });
        assert_eq!((found, asked), (Err(Gone), 5));
    }
}
