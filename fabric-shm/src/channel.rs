//! The words of a channel. With them the members of a team report their progress in a slot of shared memory.
//!
//! ```text
//! post of member 0 | post of member 1 | …       its progress in writing its own slot; the other members watch it
//! ends of member 0 | ends of member 1 | …       its progress in reading the others' slots, and the turns it has left
//! ```
//!
//! Each word has one writer and only grows. The steps of the collectives in a channel have *tickets*; all members count them
//! alike. A *turn* is one use of the channel, from its acquisition to the background synchronisation that ends it. A member that
//! reaches the synchronisation point stores the turn's number and goes on. The channel is available again once all members have
//! done so. A member waits for that only if no other channel is available.

use doorbell_fabric::sync::{AtomicU64, Ordering, planted_bug};

/// Bytes that a post carries beside its words. They need no slot, and arrive with the cache line that the other members watch
/// anyway.
pub const SHORT_BYTES: usize = 8 * SHORT_WORDS;
const SHORT_WORDS: usize = 13;

/// One member's announcement of the data it has put into the channel.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Default)]
pub struct Post {
    /// The ticket of the latest step.
    ticket: AtomicU64,
    /// A number for the operation that the step belongs to.
    sign: AtomicU64,
    /// The number of turns of all channels that the member has left in sequence since the team was formed.
    left: AtomicU64,
    short: [AtomicU64; SHORT_WORDS],
}

/// One member's progress in reading the slots of the others.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Default)]
pub struct Ends {
    /// The ticket of the latest step from which the member has taken everything it needs.
    taken: AtomicU64,
    /// The number of turns of this channel that the member has left.
    left: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Post>() == 128 && size_of::<Ends>() == 128);

/// A channel from the viewpoint of one member.
#[derive(Clone, Copy)]
pub struct Channel<'a> {
    me: usize,
    posts: &'a [Post],
    ends: &'a [Ends],
}

impl<'a> Channel<'a> {
    /// A channel over these words, for the member at this index.
    ///
    /// # Panics
    /// There is no member `me`, or the numbers of posts and ends differ.
    #[inline]
    pub fn new(me: usize, posts: &'a [Post], ends: &'a [Ends]) -> Self {
        assert!(
            me < posts.len() && posts.len() == ends.len(),
            "a channel needs one post and one end for each member, and this member among them"
        );
        Self { me, posts, ends }
    }

    /// The number of members.
    #[inline]
    pub fn members(&self) -> usize {
        self.posts.len()
    }

    /// Whether all members have left this many turns of this channel, so that the next turn may acquire it.
    #[inline]
    pub fn is_available(&self, turns: u64) -> bool {
        (0..self.ends.len()).all(|member| self.has_left(member, turns))
    }

    /// Whether a member has left this many turns of this channel.
    #[inline]
    pub fn has_left(&self, member: usize, turns: u64) -> bool {
        // Acquire: pairs with the release in `leave`, so the member has finished reading the slots.
        self.ends[member].left.load(Ordering::Acquire) >= turns
    }

    /// The background synchronisation of this member: it has left this many turns of the channel and no longer touches their
    /// slots.
    #[inline]
    pub fn leave(&self, turns: u64) {
        let order = if planted_bug("leave") { Ordering::Relaxed } else { Ordering::Release };
        // Release: everything that this member read and wrote in the slots comes before.
        self.ends[self.me].left.store(turns, order);
    }

    /// Sets the bytes that travel with the next post: at most [`SHORT_BYTES`]. The last word is padded.
    #[inline]
    pub fn put_short(&self, bytes: &[u8]) {
        for (word, bytes) in self.posts[self.me].short.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }

    /// Copies the bytes that came with a member's latest post.
    #[inline]
    pub fn short(&self, member: usize, into: &mut [u8]) {
        for (word, into) in self.posts[member].short.iter().zip(into.chunks_mut(8)) {
            let whole = word.load(Ordering::Relaxed).to_ne_bytes();
            into.copy_from_slice(&whole[..into.len()]);
        }
    }

    /// Announces that the data of a step is in place. `left` is the number of turns of all channels that this member has left.
    #[inline]
    pub fn post(&self, ticket: u64, sign: u64, left: u64) {
        let post = &self.posts[self.me];
        post.sign.store(sign, Ordering::Relaxed);
        // Release: a member that sees this may overwrite what was read in those turns, whichever post brought it.
        post.left.store(left, Ordering::Release);
        // Release: publishes the slot's bytes and the words above.
        post.ticket.store(ticket, Ordering::Release);
    }

    /// Whether a member has posted this step or a later one.
    #[inline]
    pub fn has_posted(&self, member: usize, ticket: u64) -> bool {
        self.posts[member].ticket.load(Ordering::Acquire) >= ticket
    }

    /// Whether a member's latest post belongs to this operation, so that both members made the same call. Also true if it has
    /// posted a later step since.
    #[inline]
    pub fn agrees(&self, member: usize, sign: u64) -> bool {
        self.posts[member].sign.load(Ordering::Relaxed) == sign
    }

    /// The number of turns of all channels that a member had left at its latest post. Ask after [`has_posted`](Self::has_posted).
    #[inline]
    pub fn left(&self, member: usize) -> u64 {
        self.posts[member].left.load(Ordering::Acquire)
    }

    /// Announces that this member has taken everything it needs from a step.
    #[inline]
    pub fn take(&self, ticket: u64) {
        self.ends[self.me].taken.store(ticket, Ordering::Release);
    }

    /// Whether a member has taken everything it needs from a step.
    #[inline]
    pub fn has_taken(&self, member: usize, ticket: u64) -> bool {
        self.ends[member].taken.load(Ordering::Acquire) >= ticket
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    struct Memory {
        posts: [Vec<Post>; 2],
        ends: [Vec<Ends>; 2],
        /// For each channel, the slot of each member.
        slots: [[UnsafeCell<u64>; 2]; 2],
    }

    impl Memory {
        fn new() -> Arc<Self> {
            let words = |_| (0..2).map(|_| Post::default()).collect();
            let ends = |_| (0..2).map(|_| Ends::default()).collect();
            let slots = std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0)));
            Arc::new(Self { posts: std::array::from_fn(words), ends: std::array::from_fn(ends), slots })
        }

        fn channel(&self, channel: usize, me: usize) -> Channel<'_> {
            Channel::new(me, &self.posts[channel], &self.ends[channel])
        }
    }

    fn wait(is_so: impl Fn() -> bool) {
        while !is_so() {
            loom::thread::yield_now();
        }
    }

    /// The turns of a member that sends its turn number to the other one: acquire, post, read, leave. With `beside` it trusts the
    /// turn counts that arrive with posts.
    fn turns(memory: &Memory, me: usize, channels: u64, turns: u64, beside: bool) {
        let mut known = 0;
        for turn in 0..turns {
            let (at, before) = ((turn % channels) as usize, turn / channels);
            let channel = memory.channel(at, me);
            if !(beside && known + channels > turn) {
                wait(|| channel.is_available(before));
            }
            let value = 10 * (turn + 1) + me as u64;
            memory.slots[at][me].with_mut(|slot| unsafe { *slot = value });
            channel.post(turn + 1, 7, turn);
            let other = 1 - me;
            wait(|| channel.has_posted(other, turn + 1));
            assert!(channel.agrees(other, 7));
            known = channel.left(other).min(turn);
            memory.slots[at][other].with(|slot| assert_eq!(unsafe { *slot }, 10 * (turn + 1) + other as u64));
            channel.leave(before + 1);
        }
    }

    fn two(channels: u64, many: u64, beside: bool) {
        loom::model(move || {
            let memory = Memory::new();
            let other = memory.clone();
            let thread = loom::thread::spawn(move || turns(&other, 1, channels, many, beside));
            turns(&memory, 0, channels, many, beside);
            thread.join().unwrap();
        });
    }

    #[test]
    fn loom_a_channel_is_acquired_again_when_all_have_left_it() {
        two(1, 2, false);
    }

    #[test]
    fn loom_what_comes_with_posts_says_that_a_channel_is_available() {
        two(2, 3, true);
    }
}
