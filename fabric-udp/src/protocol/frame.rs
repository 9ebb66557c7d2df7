//! The frames of a data datagram, behind its header.

use super::wire::{Put, Reader, Writer};
use doorbell_fabric::{PacketHead, PacketKind, Priority};

/// The most ranges in one acknowledgement.
pub(crate) const ACK_RANGES_MAX: usize = 64;

const PADDING: u8 = 0x00;
pub const PING: u8 = 0x01;
const ACK: u8 = 0x02;
const CLOSE: u8 = 0x03;
const CHALLENGE: u8 = 0x04;
const RESPONSE: u8 = 0x05;
const DATA: u8 = 0x06;
const GRANT: u8 = 0x07;
const CANCEL: u8 = 0x08;
// The low two bits of these are the priority.
const PACKET: u8 = 0x10;
const FRAGMENT: u8 = 0x14;
const CREDIT: u8 = 0x18;

/// The length of a whole packet's head without a separate total.
pub(crate) const PACKET_HEAD: usize = 20;
/// The greatest length of a whole packet's head.
pub(crate) const PACKET_HEAD_MAX: usize = PACKET_HEAD + 8;
/// The length of a fragment's head.
pub(crate) const FRAGMENT_HEAD: usize = 16;
/// The length of the head of transfer bytes.
pub(crate) const DATA_HEAD: usize = 28;
/// The length of a credit.
pub(crate) const CREDIT_LEN: usize = 16;
/// The length of a grant or a cancel.
pub(crate) const GRANT_LEN: usize = 20;
/// The length of a challenge or a response.
pub(crate) const CHALLENGE_LEN: usize = 12;
/// The length of an acknowledgement of one range. Each further range takes [`ACK_RANGE`] bytes.
pub(crate) const ACK_LEN: usize = 20;
/// The length of a further range.
pub(crate) const ACK_RANGE: usize = 8;
/// The greatest length of a close.
pub(crate) const CLOSE_LEN: usize = 4;

/// One frame, as it lies in a datagram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Frame<'a> {
    Ping,
    Ack(Ack<'a>),
    Close {
        code: u8,
    },
    Challenge(u64),
    Response(u64),
    /// Bytes of a transfer.
    Data {
        transfer: u64,
        offset: u64,
        total: u64,
        bytes: &'a [u8],
    },
    /// The bytes of a transfer below `limit` may be sent.
    Grant {
        transfer: u64,
        limit: u64,
    },
    /// One end gives up a transfer.
    Cancel {
        transfer: u64,
        by_receiver: bool,
    },
    /// A whole packet of a lane.
    Packet {
        priority: Priority,
        sequence: u32,
        packet: Packet<'a>,
    },
    /// A part of a packet: the bytes from `offset` of the `total` bytes of its image (see [`write_image`]).
    Fragment {
        priority: Priority,
        sequence: u32,
        total: u32,
        offset: u32,
        bytes: &'a [u8],
    },
    /// A lane's limit for its sender.
    Credit {
        priority: Priority,
        refused: bool,
        stamp: u32,
        limit: u64,
    },
}

/// One packet of a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Packet<'a> {
    pub head: PacketHead,
    pub payload: &'a [u8],
}

/// An acknowledgement of packet numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ack<'a> {
    /// The highest number.
    pub largest: u64,
    /// The time since that number arrived, in nanoseconds.
    pub delay: u32,
    first: u32,
    rest: &'a [u8],
}

impl Ack<'_> {
    /// Whether no range goes below zero. [`ranges`](Self::ranges) may be called only then.
    fn is_sound(&self) -> bool {
        let Some(mut low) = self.largest.checked_sub(u64::from(self.first)) else { return false };
        for pair in self.rest.chunks_exact(ACK_RANGE) {
            let (gap, more) = pair_of(pair);
            let Some(next) = low.checked_sub(gap + more + 2) else { return false };
            low = next;
        }
        true
    }

    /// The ranges, both ends included, the highest first.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = (self.largest - u64::from(self.first), self.largest);
        let mut low = first.0;
        std::iter::once(first).chain(self.rest.chunks_exact(ACK_RANGE).map(move |pair| {
            let (gap, more) = pair_of(pair);
            let high = low - gap - 2;
            low = high - more;
            (low, high)
        }))
    }
}

/// The count of missing numbers before a range less one, and of numbers in it less one.
fn pair_of(bytes: &[u8]) -> (u64, u64) {
    let mut reader = Reader::new(bytes);
    (u64::from(reader.u32().unwrap_or(0)), u64::from(reader.u32().unwrap_or(0)))
}

/// The next frame, `None` at the end, or an error if the frame is malformed.
#[inline]
pub(crate) fn read<'a>(reader: &mut Reader<'a>) -> Result<Option<Frame<'a>>, &'static str> {
    let Some(kind) = reader.u8() else { return Ok(None) };
    if kind == PADDING {
        // Padding is always last.
        return Ok(None);
    }
    read_body(kind, reader).map(Some).ok_or("a malformed frame")
}

#[inline]
fn read_body<'a>(kind: u8, reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    if kind == PING {
        return Some(Frame::Ping);
    }
    // Every other frame begins with its kind, a byte and a number of bytes.
    let (byte, len) = (reader.u8()?, usize::from(reader.u16()?));
    Some(match (kind & !3, kind) {
        (PACKET, _) => {
            let priority = priority_of(kind & 3)?;
            let kind = PacketKind::from_number(byte)?;
            let (sequence, tag, message) = (reader.u32()?, reader.u64()?, reader.u32()?);
            let total = if kind.has_total() { reader.u64()? } else { len as u64 };
            let head = PacketHead { kind, tag, sequence: message, total };
            Frame::Packet { priority, sequence, packet: Packet { head, payload: reader.bytes(len)? } }
        }
        (FRAGMENT, _) => {
            let priority = priority_of(kind & 3)?;
            let (sequence, total, offset) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let bytes = reader.bytes(len)?;
            if u64::from(offset) + len as u64 > u64::from(total) || total as usize > IMAGE_MAX || bytes.is_empty() {
                return None;
            }
            Frame::Fragment { priority, sequence, total, offset, bytes }
        }
        (CREDIT, _) => {
            let priority = priority_of(kind & 3)?;
            Frame::Credit { priority, refused: byte != 0, stamp: reader.u32()?, limit: reader.u64()? }
        }
        (_, ACK) => {
            let count = usize::from(byte);
            let (delay, largest, first) = (reader.u32()?, reader.u64()?, reader.u32()?);
            if count > ACK_RANGES_MAX {
                return None;
            }
            let ack = Ack { largest, delay, first, rest: reader.bytes(count * ACK_RANGE)? };
            if !ack.is_sound() {
                return None;
            }
            Frame::Ack(ack)
        }
        (_, CLOSE) => Frame::Close { code: byte },
        (_, CHALLENGE) => Frame::Challenge(reader.u64()?),
        (_, RESPONSE) => Frame::Response(reader.u64()?),
        (_, DATA) => {
            let (transfer, offset, total) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let bytes = reader.bytes(len)?;
            if offset.checked_add(len as u64)? > total {
                return None;
            }
            Frame::Data { transfer, offset, total, bytes }
        }
        (_, GRANT) => Frame::Grant { transfer: reader.u64()?, limit: reader.u64()? },
        (_, CANCEL) => {
            let transfer = reader.u64()?;
            reader.u64()?;
            Frame::Cancel { transfer, by_receiver: byte != 0 }
        }
        _ => return None,
    })
}

fn priority_of(number: u8) -> Option<Priority> {
    Priority::ALL.get(usize::from(number)).copied()
}

/// The greatest length of a packet's image.
pub(crate) const IMAGE_MAX: usize = PACKET_HEAD_MAX + u16::MAX as usize;

/// The length of a packet's image: a whole-packet frame without priority and sequence.
pub(crate) fn image_len(head: &PacketHead, payload: usize) -> usize {
    PACKET_HEAD + if head.kind.has_total() { 8 } else { 0 } + payload
}

/// Writes the image of a packet, which equals the frame that carries the packet whole. An image is kept until it is acknowledged.
#[inline]
pub(crate) fn write_image(image: &mut [u8], priority: Priority, sequence: u32, head: &PacketHead, payload: &[u8]) {
    let mut writer = Writer::new(image);
    write_head(&mut writer, PACKET | priority as u8, head.kind as u8, payload.len());
    writer.u32(sequence);
    writer.u64(head.tag);
    writer.u32(head.sequence);
    if head.kind.has_total() {
        writer.u64(head.total);
    }
    writer.bytes(payload);
}

/// The packet of an image that was assembled from fragments.
pub(crate) fn read_image(image: &[u8]) -> Option<(Priority, u32, Packet<'_>)> {
    let mut reader = Reader::new(image);
    match read(&mut reader) {
        Ok(Some(Frame::Packet { priority, sequence, packet })) if reader.is_empty() => Some((priority, sequence, packet)),
        _ => None,
    }
}

/// The beginning of every frame but a ping.
#[inline]
fn write_head(writer: &mut Writer, kind: u8, byte: u8, len: usize) {
    writer.bytes(&[kind, byte, len as u8, (len >> 8) as u8]);
}

/// A frame of numbers alone.
#[inline]
fn write_words<const N: usize>(writer: &mut Writer, kind: u8, byte: u8, len: usize, words: [u64; N]) {
    write_head(writer, kind, byte, len);
    words.into_iter().for_each(|word| writer.u64(word));
}

pub(crate) fn write_ping(writer: &mut Writer) {
    writer.u8(PING);
}

/// Fills `len` bytes that no reader looks at. Nothing may follow.
pub(crate) fn write_padding(writer: &mut Writer, len: usize) {
    writer.space(len).fill(PADDING);
}

/// Writes as many ranges as fit, the highest first, both ends included.
pub(crate) fn write_ack(writer: &mut Writer, delay: u32, ranges: impl Iterator<Item = (u64, u64)>) {
    let mut ranges = ranges.map(|(low, high)| (low.max(high.saturating_sub(u64::from(u32::MAX))), high));
    let Some((mut low, largest)) = ranges.next() else { return };
    let most = ((writer.room().saturating_sub(ACK_LEN)) / ACK_RANGE).min(ACK_RANGES_MAX);
    let start = writer.len();
    write_head(writer, ACK, 0, 0);
    writer.u32(delay);
    writer.u64(largest);
    writer.u32((largest - low) as u32);
    let mut count = 0;
    for (next_low, next_high) in ranges.take(most) {
        let gap = low - next_high - 2;
        if gap > u64::from(u32::MAX) {
            break;
        }
        writer.u32(gap as u32);
        writer.u32((next_high - next_low) as u32);
        low = next_low;
        count += 1;
    }
    let end = writer.len();
    writer.back_to(start + 1);
    writer.u8(count);
    writer.space(end - start - 2);
}

pub(crate) fn write_close(writer: &mut Writer, code: u8) {
    write_head(writer, CLOSE, code, 0);
}

pub(crate) fn write_challenge(writer: &mut Writer, word: u64) {
    write_words(writer, CHALLENGE, 0, 0, [word]);
}

pub(crate) fn write_response(writer: &mut Writer, word: u64) {
    write_words(writer, RESPONSE, 0, 0, [word]);
}

/// Writes the head of transfer bytes. The bytes themselves follow.
pub(crate) fn write_data_head(writer: &mut Writer, transfer: u64, offset: u64, total: u64, len: usize) {
    write_words(writer, DATA, 0, len, [transfer, offset, total]);
}

pub(crate) fn write_grant(writer: &mut Writer, transfer: u64, limit: u64) {
    write_words(writer, GRANT, 0, 0, [transfer, limit]);
}

pub(crate) fn write_cancel(writer: &mut Writer, transfer: u64, by_receiver: bool) {
    write_words(writer, CANCEL, by_receiver.into(), 0, [transfer, 0]);
}

pub(crate) fn write_fragment(writer: &mut Writer, priority: Priority, sequence: u32, total: u32, offset: u32, bytes: &[u8]) {
    write_head(writer, FRAGMENT | priority as u8, 0, bytes.len());
    [sequence, total, offset].into_iter().for_each(|number| writer.u32(number));
    writer.bytes(bytes);
}

pub(crate) fn write_credit(writer: &mut Writer, priority: Priority, refused: bool, stamp: u32, limit: u64) {
    write_head(writer, CREDIT | priority as u8, refused.into(), 0);
    writer.u32(stamp);
    writer.u64(limit);
}
