//! The packets that wait to be sent to a client.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::chunk::Chunk;
use crate::message::Message;
use crate::reply::Reply;

/// A queue that had room for more packets gives its memory back once it is empty.
const WAITING_USUAL: usize = 8;

/// Packets, and at most one snapshot, which is cut into pieces while it is sent.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    packets: VecDeque<Packet>,
    /// The length of all packets.
    packet_bytes: usize,
    snapshot: Option<Snapshot>,
}

#[derive(Debug)]
struct Packet {
    bytes: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

/// The text is shared between the sessions that asked for it at the same time, so that slow readers
/// cost no memory.
#[derive(Debug)]
struct Snapshot {
    request: u64,
    text: Arc<str>,
    offset: usize,
}

impl SendQueue {
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }

    /// The memory that waits: all packets, and the text of the snapshot.
    pub(super) fn bytes(&self) -> usize {
        self.packet_bytes + self.snapshot.as_ref().map_or(0, |snapshot| snapshot.text.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.snapshot.is_none()
    }

    pub(super) const fn has_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    pub(super) fn push(&mut self, message: &Message<Reply>, descriptor: Option<OwnedFd>) {
        let bytes = message.encode();
        self.packet_bytes += bytes.len();
        self.packets.push_back(Packet { bytes, descriptor });
    }

    pub(super) fn push_snapshot(&mut self, request: u64, text: Arc<str>) {
        self.snapshot = Some(Snapshot { request, text, offset: 0 });
    }

    /// Sends as much as the socket has room for. Other replies precede the rest of a snapshot.
    pub(super) fn flush(
        &mut self,
        mut send: impl FnMut(&[u8], Option<BorrowedFd<'_>>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut send =
            |bytes: &[u8], descriptor: Option<BorrowedFd<'_>>| match send(bytes, descriptor) {
                Err(Errno::AGAIN) => Ok(false),
                other => other.map(|()| true),
            };
        while let Some(packet) = self.packets.front() {
            if !send(&packet.bytes, packet.descriptor.as_ref().map(AsFd::as_fd))? {
                return Ok(());
            }
            self.packet_bytes -= packet.bytes.len();
            self.packets.pop_front();
        }
        if self.packets.capacity() > WAITING_USUAL {
            self.packets = VecDeque::new();
        }
        while let Some(snapshot) = &mut self.snapshot {
            let Some(chunk) = Chunk::cut(snapshot.text.as_bytes(), snapshot.offset) else {
                self.snapshot = None;
                break;
            };
            let end = snapshot.offset + chunk.bytes().len();
            let message = Message { request: snapshot.request, body: Reply::Snapshot(chunk) };
            if !send(&message.encode(), None)? {
                return Ok(());
            }
            snapshot.offset = end;
            if end == snapshot.text.len() {
                self.snapshot = None;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{Assembly, CHUNK_BYTES_MAX};

    #[test]
    fn packets_without_room_wait_and_are_sent_once() {
        let mut queue = SendQueue::default();
        for request in 1..=3 {
            queue.push(&Message { request, body: Reply::Ok }, None);
        }
        let mut sent = Vec::new();
        for room in [2, 0, 9] {
            let mut left = room;
            let flushed = queue.flush(|bytes, _| {
                left = u32::checked_sub(left, 1).ok_or(Errno::AGAIN)?;
                sent.push(Message::<Reply>::decode(bytes).unwrap().request);
                Ok(())
            });
            assert_eq!(flushed, Ok(()));
        }
        assert_eq!(sent, [1, 2, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn waiting_bytes_are_those_of_the_packets_and_of_the_snapshot() {
        let mut queue = SendQueue::default();
        let message = Message { request: 1, body: Reply::Ok };
        queue.push(&message, None);
        queue.push(&message, None);
        queue.push_snapshot(2, "text".into());
        let packet = message.encode().len();
        assert_eq!(queue.bytes(), 2 * packet + 4);
        let mut room = 1;
        let flushed = queue.flush(|_, _| {
            room = u32::checked_sub(room, 1).ok_or(Errno::AGAIN)?;
            Ok(())
        });
        assert_eq!((flushed, queue.bytes()), (Ok(()), packet + 4));
        queue.flush(|_, _| Ok(())).unwrap();
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn a_snapshot_is_sent_in_pieces_and_other_replies_precede_them() {
        let text: Arc<str> = "x".repeat(2 * CHUNK_BYTES_MAX + 5).into();
        let mut queue = SendQueue::default();
        queue.push_snapshot(4, Arc::clone(&text));
        let mut sent: Vec<Message<Reply>> = Vec::new();
        let mut one_at_a_time = |queue: &mut SendQueue| {
            let mut room = true;
            queue.flush(|bytes, _| {
                if !std::mem::take(&mut room) {
                    return Err(Errno::AGAIN);
                }
                sent.push(Message::decode(bytes).unwrap());
                Ok(())
            })
        };
        one_at_a_time(&mut queue).unwrap();
        queue.push(&Message { request: 5, body: Reply::Ok }, None);
        while !queue.is_empty() {
            one_at_a_time(&mut queue).unwrap();
        }
        assert_eq!(sent.iter().map(|message| message.request).collect::<Vec<_>>(), [4, 5, 4, 4]);
        let mut assembly = Assembly::default();
        let whole = sent.iter().find_map(|message| {
            let Reply::Snapshot(chunk) = &message.body else { return None };
            assembly.push(chunk).unwrap()
        });
        assert_eq!(whole.as_deref(), Some(&*text));
    }

    #[test]
    fn an_empty_snapshot_is_one_empty_piece() {
        let mut queue = SendQueue::default();
        queue.push_snapshot(1, "".into());
        let mut count = 0;
        let count_one = |_: &[u8], _: Option<BorrowedFd<'_>>| {
            count += 1;
            Ok(())
        };
        queue.flush(count_one).unwrap();
        assert_eq!(count, 1);
        assert!(queue.is_empty());
    }
}
