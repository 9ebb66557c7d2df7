//! The frames of a data datagram, behind its header.

use super::wire::{FromBytes, Immutable, IntoBytes, KnownLayout, U16, U32, U64, Unaligned, Writer, take};
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

/// The beginning of every frame but Padding and Ping.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    byte: u8,
    len: U16,
}

/// What follows it in Packet (sequence, tag, the message's sequence) and in Ack (delay, largest, numbers below it).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Numbers(U32, U64, U32);

/// A range of an acknowledgement behind the first: the count of missing numbers before it less one, and of numbers in it less
/// one.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AckRange {
    gap: U32,
    more: U32,
}

/// One frame, as it lies in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frame<'a> {
    Ack(Ack<'a>),
    /// Bytes of a transfer.
    Data {
        transfer: u64,
        offset: u64,
        total: u64,
        bytes: &'a [u8],
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
    Short(Short),
}

/// A frame of a few numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Short {
    Ping,
    Close(u8),
    Challenge(u64),
    Response(u64),
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    /// The highest number.
    pub largest: u64,
    /// The time since that number arrived, in nanoseconds.
    pub delay: u32,
    first: u32,
    rest: &'a [AckRange],
}

impl Ack<'_> {
    /// Whether no range goes below zero. [`ranges`](Self::ranges) may be called only then.
    fn is_sound(&self) -> bool {
        let below = |low: u64, range: &AckRange| low.checked_sub(u64::from(range.gap) + u64::from(range.more) + 2);
        let low = self.largest.checked_sub(self.first.into());
        low.and_then(|low| self.rest.iter().try_fold(low, below)).is_some()
    }

    /// The ranges, both ends included, the highest first.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = (self.largest - u64::from(self.first), self.largest);
        let mut low = first.0;
        std::iter::once(first).chain(self.rest.iter().map(move |range| {
            let high = low - u64::from(range.gap) - 2;
            low = high - u64::from(range.more);
            (low, high)
        }))
    }
}

/// The next frame, `None` at the end, or an error if the frame is malformed.
#[inline]
pub(crate) fn read<'a>(bytes: &mut &'a [u8]) -> Result<Option<Frame<'a>>, &'static str> {
    match bytes.first() {
        // Padding is always last.
        None | Some(&PADDING) => Ok(None),
        Some(&PING) => {
            *bytes = &bytes[1..];
            Ok(Some(Frame::Short(Short::Ping)))
        }
        Some(_) => read_body(bytes).map(Some).ok_or("a malformed frame"),
    }
}

fn words<const N: usize>(bytes: &mut &[u8]) -> Option<[u64; N]> {
    Some(take::<[U64; N]>(bytes)?.map(U64::get))
}

#[inline]
fn read_body<'a>(bytes: &mut &'a [u8]) -> Option<Frame<'a>> {
    let Head { kind, byte, len } = take(bytes)?;
    let len = usize::from(len.get());
    let priority = || Priority::ALL.get(usize::from(kind & 3)).copied();
    Some(match (kind & !3, *kind) {
        (PACKET, _) => {
            let priority = priority()?;
            let kind = PacketKind::from_number(*byte)?;
            let Numbers(sequence, tag, message) = take(bytes)?;
            let total = if kind.has_total() { take::<U64>(bytes)?.get() } else { len as u64 };
            let head = PacketHead { kind, tag: tag.get(), sequence: message.get(), total };
            let packet = Packet { head, payload: bytes.split_off(..len)? };
            Frame::Packet { priority, sequence: sequence.get(), packet }
        }
        (FRAGMENT, _) => {
            let [sequence, total, offset] = take::<[U32; 3]>(bytes)?.map(U32::get);
            let bytes = bytes.split_off(..len)?;
            if u64::from(offset) + len as u64 > u64::from(total) || total as usize > IMAGE_MAX || bytes.is_empty() {
                return None;
            }
            Frame::Fragment { priority: priority()?, sequence, total, offset, bytes }
        }
        (CREDIT, _) => {
            let (priority, stamp) = (priority()?, take::<U32>(bytes)?.get());
            let [limit] = words(bytes)?;
            Frame::Short(Short::Credit { priority, refused: *byte != 0, stamp, limit })
        }
        (_, ACK) => {
            let Numbers(delay, largest, first) = take(bytes)?;
            let (rest, behind) = <[AckRange]>::ref_from_prefix_with_elems(bytes, usize::from(*byte)).ok()?;
            *bytes = behind;
            let ack = Ack { largest: largest.get(), delay: delay.get(), first: first.get(), rest };
            if rest.len() > ACK_RANGES_MAX || !ack.is_sound() {
                return None;
            }
            Frame::Ack(ack)
        }
        (_, DATA) => {
            let [transfer, offset, total] = words(bytes)?;
            let bytes = bytes.split_off(..len)?;
            if offset.checked_add(len as u64)? > total {
                return None;
            }
            Frame::Data { transfer, offset, total, bytes }
        }
        (_, CLOSE) => Frame::Short(Short::Close(*byte)),
        (_, CHALLENGE) => Frame::Short(Short::Challenge(words::<1>(bytes)?[0])),
        (_, RESPONSE) => Frame::Short(Short::Response(words::<1>(bytes)?[0])),
        (_, GRANT) => {
            let [transfer, limit] = words(bytes)?;
            Frame::Short(Short::Grant { transfer, limit })
        }
        (_, CANCEL) => {
            let [transfer, _] = words(bytes)?;
            Frame::Short(Short::Cancel { transfer, by_receiver: *byte != 0 })
        }
        _ => return None,
    })
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
    writer.put(&Numbers(sequence.into(), head.tag.into(), head.sequence.into()));
    if head.kind.has_total() {
        writer.put(&U64::new(head.total));
    }
    writer.put(payload);
}

/// The packet of an image that was assembled from fragments.
pub(crate) fn read_image(mut image: &[u8]) -> Option<(Priority, u32, Packet<'_>)> {
    match read(&mut image) {
        Ok(Some(Frame::Packet { priority, sequence, packet })) if image.is_empty() => Some((priority, sequence, packet)),
        _ => None,
    }
}

#[inline]
fn write_head(writer: &mut Writer, kind: u8, byte: u8, len: usize) {
    writer.put(&Head { kind, byte, len: (len as u16).into() });
}

/// Writes a frame of words alone.
#[inline]
fn write_words<const N: usize>(writer: &mut Writer, kind: u8, byte: u8, len: usize, words: [u64; N]) {
    write_head(writer, kind, byte, len);
    writer.put(&words.map(U64::new));
}

impl Short {
    pub fn write(self, writer: &mut Writer) {
        match self {
            Short::Ping => writer.put(&PING),
            Short::Close(code) => write_words(writer, CLOSE, code, 0, []),
            Short::Challenge(word) => write_words(writer, CHALLENGE, 0, 0, [word]),
            Short::Response(word) => write_words(writer, RESPONSE, 0, 0, [word]),
            Short::Grant { transfer, limit } => write_words(writer, GRANT, 0, 0, [transfer, limit]),
            Short::Cancel { transfer, by_receiver } => write_words(writer, CANCEL, by_receiver.into(), 0, [transfer, 0]),
            Short::Credit { priority, refused, stamp, limit } => {
                write_head(writer, CREDIT | priority as u8, refused.into(), 0);
                writer.put(&U32::new(stamp));
                writer.put(&U64::new(limit));
            }
        }
    }
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
    let mut head = Head { kind: ACK, byte: 0, len: U16::ZERO };
    writer.space(size_of::<Head>());
    writer.put(&Numbers(delay.into(), largest.into(), ((largest - low) as u32).into()));
    for (next_low, next_high) in ranges.take(most) {
        let Ok(gap) = u32::try_from(low - next_high - 2) else { break };
        writer.put(&AckRange { gap: gap.into(), more: ((next_high - next_low) as u32).into() });
        low = next_low;
        head.byte += 1;
    }
    let end = writer.len();
    writer.back_to(start);
    writer.put(&head);
    writer.space(end - start - size_of::<Head>());
}

/// Writes the head of transfer bytes. The bytes themselves follow.
pub(crate) fn write_data_head(writer: &mut Writer, transfer: u64, offset: u64, total: u64, len: usize) {
    write_words(writer, DATA, 0, len, [transfer, offset, total]);
}

pub(crate) fn write_fragment(writer: &mut Writer, priority: Priority, sequence: u32, total: u32, offset: u32, bytes: &[u8]) {
    write_head(writer, FRAGMENT | priority as u8, 0, bytes.len());
    writer.put(&[sequence, total, offset].map(U32::new));
    writer.put(bytes);
}
