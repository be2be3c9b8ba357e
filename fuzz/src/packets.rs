//! What other processes send to the daemon or share with it: packets of every protocol, and hint
//! pages.

use std::collections::BTreeMap;

use gpreempt_wire::hint_page::{HintChange, HintReader, Mapping, PAGE_BYTES, SLOTS};
use gpreempt_wire::message::{Body, DAEMON, Header, Message, request_of};
use gpreempt_wire::{emulated_kfd, emulator, reply, request};

/// Any packet is a message with exactly one encoding, or an error of one line, in both directions
/// of the daemon's, the emulator's and the emulated KFD's protocol.
pub(crate) fn check_message(bytes: &[u8]) {
    check_body::<request::Request>(bytes);
    check_body::<reply::Reply>(bytes);
    check_body::<emulator::Request>(bytes);
    check_body::<emulator::Reply>(bytes);
    check_body::<emulated_kfd::Question>(bytes);
    check_body::<emulated_kfd::Answer>(bytes);
}

fn check_body<B: Body>(bytes: &[u8]) {
    check_packet::<B>(bytes);
    // The same bytes behind a correct header, so that the fields are reached more often.
    let Some(([low, high], body)) = bytes.split_first_chunk() else { return };
    let header = Header { kind: u16::from_le_bytes([*low, *high]), request: 1 };
    if let Ok(packet) = header.join(&B::PROTOCOL, body) {
        check_packet::<B>(&packet);
    }
}

fn check_packet<B: Body>(packet: &[u8]) {
    match Message::<B>::decode(packet) {
        Ok(message) => {
            assert_eq!(message.encode(), packet, "a message has two encodings");
            // This function is for answers to packets that are no messages of the daemon.
            if B::PROTOCOL.magic == DAEMON.magic {
                assert_eq!(message.request, request_of(packet));
            }
        }
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}

/// Whatever a process writes into its page, the daemon reads what [`Expected`] reads. The input is
/// the page; a second page may follow it, for a second reading.
pub(crate) fn check_hint_page(bytes: &[u8]) {
    let (mapping, file) = Mapping::create().expect("a memfd can be created and mapped");
    let (mut reader, mut expected) = (HintReader::default(), Expected::default());
    for page in bytes.chunks(PAGE_BYTES).take(2) {
        rustix::io::pwrite(&file, page, 0).expect("a memfd can be written");
        let opened = Mapping::open(&file);
        assert_eq!(opened.is_ok(), mapping.page().check().is_ok());
        let mut now = vec![0; PAGE_BYTES];
        rustix::io::pread(&file, &mut now, 0).expect("a memfd can be read");
        assert_eq!(reader.look(mapping.page()), expected.look(&now));
        // What the library does in the process must not panic or leave the page either.
        let slot = mapping.page().claim();
        assert!(slot.is_none_or(|slot| slot < SLOTS));
        for slot in slot.into_iter().chain([0, SLOTS - 1, SLOTS, usize::MAX]) {
            mapping.page().begin(slot, 7);
            mapping.page().end(slot);
            mapping.page().release(slot);
        }
        reader.arm_and_look(mapping.page());
        rustix::io::pread(&file, &mut now, 0).expect("a memfd can be read");
        expected.look(&now);
    }
}

/// The reader again, written from the description of the page instead of its types.
#[derive(Default)]
struct Expected {
    begun: BTreeMap<usize, u64>,
    was_active: bool,
}

impl Expected {
    fn look(&mut self, page: &[u8]) -> Option<HintChange> {
        // PANIC: every offset is within a page.
        let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
        let used = usize::try_from(number(8) >> 32).unwrap_or(SLOTS).min(SLOTS);
        let (mut is_active, mut deadlines, mut began) = (false, Vec::new(), false);
        for slot in 0..used {
            let at = 64 * (slot + 1);
            let (begun, ended, deadline_us) = (number(at + 8), number(at + 16), number(at + 24));
            let is_new = self.begun.insert(slot, begun).unwrap_or(0) != begun;
            is_active |= begun > ended;
            if is_new && begun > ended {
                began = true;
                deadlines.extend((deadline_us != 0).then_some(deadline_us));
            }
        }
        let has_ended = self.was_active && !is_active;
        self.was_active = is_active;
        let deadline_us = deadlines.into_iter().min();
        if began {
            return Some(HintChange::Began { deadline_us });
        }
        has_ended.then_some(HintChange::Ended)
    }
}
