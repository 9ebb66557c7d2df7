//! The baton: exclusive access that a frequent thread gets without a locked instruction.
//!
//! A baton is a short lock with a **bias**. After one thread has taken it many times in a row, the lock is biased to that
//! thread. The biased thread then enters by writing its own word and reading the bias, both in its own cache. Another thread
//! that wants the baton takes the lock, revokes the bias, and pays for the fence that the biased thread left out
//! ([`sure_barrier`]). Either the biased thread has seen the revocation, or the revoking thread sees it inside and waits. Once
//! the kernel has refused that fence, no thread gets a bias any more.
//!
//! A thread may be stopped for long between reading the bias and writing its word, and the bias may have moved on by then. So
//! each thread that ever had the bias has a word of its own, a **seat**, which no other thread writes.

use doorbell_fabric::sync::{AtomicU32, AtomicU64, Barriers, Ordering, light_barrier, spin_hint, sure_barrier};
#[cfg(not(loom))]
use doorbell_fabric::world;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

/// After this many entries in a row, a baton is biased to the thread that took it.
const STREAK: u32 = if cfg!(loom) { 1 } else { 64 };

/// The most threads that a baton can ever be biased to. Later ones take the lock.
const SEATS: usize = if cfg!(loom) { 2 } else { 16 };

/// Exclusive access to a `T`, for the threads of one process.
pub struct Baton<T> {
    /// The thread that may enter without the lock: its token, and above it the number of its seat. 0 for none.
    bias: AtomicU64,
    seats: [Seat; SEATS],
    /// 0 free, otherwise the token of the holder.
    lock: AtomicU32,
    held: UnsafeCell<Held<T>>,
}

/// The place of one thread that has or had the bias.
#[derive(Default)]
#[repr(C)]
struct Seat {
    /// 1 while that thread is inside by bias. Only that thread writes it. It comes first, so that its address takes one step less.
    inside: AtomicU32,
    /// The seat's thread, for ever; 0 while it is free. Written under the lock.
    token: AtomicU32,
}

struct Held<T> {
    last: u32,
    streak: u32,
    /// Nobody has held it by a [`BatonGuard`] since [`AtOnce::settle`].
    settled: bool,
    value: T,
}

// SAFETY: the value is reached through a guard only, and there is one guard at a time.
unsafe impl<T: Send> Sync for Baton<T> {}
// SAFETY: the value moves with the baton.
unsafe impl<T: Send> Send for Baton<T> {}

/// The name of a thread for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u32);

/// The token of a thread that has none yet. No baton is biased to it.
#[cfg(not(loom))]
const UNNAMED: Token = Token(u32::MAX);

#[cfg(not(loom))]
thread_local!(static TOKEN: std::cell::Cell<Token> = const { std::cell::Cell::new(UNNAMED) });

impl Token {
    /// The token of the calling thread.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn current() -> Token {
        #[cold]
        fn assign() -> Token {
            static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
            // After four thousand million threads a token is used twice. No thread may live as long as that.
            loop {
                let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number != 0 && number != UNNAMED.0 {
                    break Token(number);
                }
            }
        }
        if TOKEN.get() == UNNAMED {
            TOKEN.set(assign());
        }
        TOKEN.get()
    }

    /// The token of the calling thread, or one that belongs to no thread: for [`Baton::enter_at_once`], which lets in no thread without one.
    #[cfg(not(loom))]
    #[inline(always)]
    pub fn at_hand() -> Token {
        TOKEN.get()
    }

    /// The token's number, which no other living thread has.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0
    }

    #[cfg(all(test, loom))]
    fn numbered(number: u32) -> Token {
        Token(number)
    }
}

impl<T> Baton<T> {
    /// A free baton.
    pub fn new(value: T) -> Self {
        Self {
            bias: AtomicU64::new(0),
            seats: std::array::from_fn(|_| Seat::default()),
            lock: AtomicU32::new(0),
            held: UnsafeCell::new(Held { last: 0, streak: 0, settled: false, value }),
        }
    }

    /// Takes the baton; waits while another thread has it. `None` if this thread has it already.
    #[inline(always)]
    pub fn enter(&self, me: Token) -> Option<BatonGuard<'_, T>> {
        let bias = self.bias.load(Ordering::Relaxed);
        if bias as u32 == me.0 {
            let inside = self.inside(bias);
            if inside.load(Ordering::Relaxed) != 0 {
                return None;
            }
            // INSIDE, then the bias once more. Pairs with REVOKE: one of the two sides sees the other.
            inside.store(1, Ordering::Relaxed);
            light_barrier();
            if self.bias.load(Ordering::Relaxed) == bias {
                return Some(BatonGuard { baton: self, me, biased: Some(inside) });
            }
            inside.store(0, Ordering::Release);
        }
        self.enter_locked(me)
    }

    /// Takes the baton if this thread has the bias and is outside. Otherwise call [`enter`](Self::enter). Short, for calls
    /// whose every instruction counts.
    #[inline(always)]
    pub fn enter_at_once(&self, me: Token) -> Option<AtOnce<'_, T>> {
        let bias = self.bias.load(Ordering::Relaxed);
        let inside = self.inside(bias);
        if bias as u32 != me.0 || inside.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // INSIDE, as in `enter`.
        inside.store(1, Ordering::Relaxed);
        light_barrier();
        let guard = AtOnce { baton: self, inside };
        (self.bias.load(Ordering::Relaxed) == bias).then_some(guard)
    }

    /// Whether another thread enters so often that entering here would disturb it.
    pub fn is_anothers(&self, me: Token) -> bool {
        let bias = self.bias.load(Ordering::Relaxed);
        bias != 0 && bias as u32 != me.0
    }

    /// The seat of the thread that a bias names.
    #[inline(always)]
    fn inside(&self, bias: u64) -> &AtomicU32 {
        &self.seats[(bias >> 32) as usize % SEATS].inside
    }

    #[inline]
    fn enter_locked(&self, me: Token) -> Option<BatonGuard<'_, T>> {
        if self.lock.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // A thread that has the lock may be waiting for this one to leave.
            if self.lock.load(Ordering::Relaxed) == me.0 || self.is_in_by_bias(me) {
                return None;
            }
            self.enter_contended(me);
        }
        let bias = self.bias.load(Ordering::Relaxed);
        if bias != 0 {
            self.revoke(bias);
        }
        Some(BatonGuard { baton: self, me, biased: None })
    }

    /// Whether this thread has the baton.
    pub fn is_mine(&self, me: Token) -> bool {
        self.lock.load(Ordering::Relaxed) == me.0 || self.is_in_by_bias(me)
    }

    #[cold]
    fn is_in_by_bias(&self, me: Token) -> bool {
        self.seats.iter().any(|seat| seat.token.load(Ordering::Relaxed) == me.0 && seat.inside.load(Ordering::Relaxed) != 0)
    }

    #[cold]
    fn enter_contended(&self, me: Token) {
        let mut spins = 0_u32;
        while self.lock.load(Ordering::Relaxed) != 0
            || self.lock.compare_exchange(0, me.0, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            spins += 1;
            wait_a_little(spins);
        }
    }

    /// Revokes the bias and waits until the biased thread is outside. The caller holds the lock.
    #[cold]
    fn revoke(&self, bias: u64) {
        // REVOKE: the bias, then a fence in every thread, then the look inside. Pairs with INSIDE.
        self.bias.store(0, Ordering::Relaxed);
        sure_barrier();
        let mut spins = 0_u32;
        // Acquire: what the biased thread did inside happens before what follows here.
        while self.inside(bias).load(Ordering::Acquire) != 0 {
            spins += 1;
            wait_a_little(spins);
        }
    }
}

/// Waits a little. A holder is inside for a microsecond or so, unless it was descheduled: then let it run.
fn wait_a_little(spins: u32) {
    if spins < 64 {
        spin_hint();
    } else {
        #[cfg(not(loom))]
        world::yield_now();
        #[cfg(loom)]
        spin_hint();
    }
}

/// The baton, held by the thread that has the bias. Dropping it releases the baton.
pub struct AtOnce<'a, T> {
    baton: &'a Baton<T>,
    inside: &'a AtomicU32,
}

impl<T> AtOnce<'_, T> {
    /// Whether no other kind of guard was there since [`settle`](Self::settle), so that what its caller found out about the
    /// value is still so, as far as holders by this kind of guard keep it so.
    #[inline(always)]
    pub fn is_settled(&self) -> bool {
        // SAFETY: this guard is the only one (enter_at_once).
        unsafe { (*self.baton.held.get()).settled }
    }

    /// From now on it is [settled](Self::is_settled).
    #[inline(always)]
    pub fn settle(&mut self) {
        // SAFETY: this guard is the only one (enter_at_once).
        unsafe { (*self.baton.held.get()).settled = true }
    }
}

impl<T> Deref for AtOnce<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (enter_at_once).
        unsafe { &(*self.baton.held.get()).value }
    }
}

impl<T> DerefMut for AtOnce<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (enter_at_once).
        unsafe { &mut (*self.baton.held.get()).value }
    }
}

impl<T> Drop for AtOnce<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.inside.store(0, Ordering::Release);
    }
}

/// The held baton. Dropping it releases the baton.
pub struct BatonGuard<'a, T> {
    baton: &'a Baton<T>,
    me: Token,
    /// The seat, if the thread entered by bias.
    biased: Option<&'a AtomicU32>,
}

impl<T> BatonGuard<'_, T> {
    #[inline(always)]
    fn held(&self) -> *mut Held<T> {
        self.baton.held.get()
    }
}

impl<T> Deref for BatonGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one (enter).
        unsafe { &(*self.held()).value }
    }
}

impl<T> DerefMut for BatonGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one (enter).
        unsafe { &mut (*self.held()).value }
    }
}

impl<T> Drop for BatonGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this guard is the only one (enter).
        unsafe { (*self.held()).settled = false };
        if let Some(inside) = self.biased {
            inside.store(0, Ordering::Release);
        } else {
            self.unlock();
        }
    }
}

impl<T> BatonGuard<'_, T> {
    /// Out of line, because a frequent thread has the bias.
    #[inline(never)]
    fn unlock(&mut self) {
        // SAFETY: this guard is the only one (enter).
        let held = unsafe { &mut *self.held() };
        if held.last == self.me.0 {
            held.streak += 1;
            if held.streak >= STREAK {
                held.streak = 0;
                let mine_or_free = |seat: &Seat| [0, self.me.0].contains(&seat.token.load(Ordering::Relaxed));
                if let Some(seat) = self.baton.seats.iter().position(mine_or_free)
                    // Where barriers fail, each revocation waits for milliseconds.
                    && Barriers::join().process
                {
                    self.baton.seats[seat].token.store(self.me.0, Ordering::Relaxed);
                    self.baton.bias.store((seat as u64) << 32 | self.me.0 as u64, Ordering::Relaxed);
                }
            }
        } else {
            (held.last, held.streak) = (self.me.0, 0);
        }
        self.baton.lock.store(0, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use std::sync::Arc;

    /// Two threads, each inside twice, so that a bias arises, is used, and is revoked. They must never be inside at the same
    /// time.
    #[test]
    fn one_thread_at_a_time() {
        loom::model(|| {
            let baton = Arc::new(Baton::new(loom::cell::UnsafeCell::new(0)));
            let visit = |baton: &Baton<loom::cell::UnsafeCell<u32>>, token, times| {
                for _ in 0..times {
                    let me = Token::numbered(token);
                    if let Some(guard) = baton.enter_at_once(me) {
                        // SAFETY: loom checks that no other thread is inside.
                        guard.with_mut(|count| unsafe { *count += 1 });
                        continue;
                    }
                    let guard = baton.enter(me).unwrap();
                    // SAFETY: as above.
                    guard.with_mut(|count| unsafe { *count += 1 });
                }
            };
            // The main thread is biased before the other begins, so that the model explores the revocation.
            visit(&baton, 1, 2);
            assert_eq!(baton.bias.load(Ordering::Relaxed), 1);
            let other = baton.clone();
            let thread = loom::thread::spawn(move || visit(&other, 2, 1));
            visit(&baton, 1, 2);
            thread.join().unwrap();
            // SAFETY: the other thread has ended.
            baton.enter(Token::numbered(3)).unwrap().with(|count| assert_eq!(unsafe { *count }, 5));
        });
    }

    /// A thread is stopped on its way in by bias; meanwhile the bias moves to another thread, which uses it.
    #[test]
    fn a_bias_that_moved_on_lets_nobody_in() {
        loom::model(|| {
            let baton = Arc::new(Baton::new(loom::cell::UnsafeCell::new(0)));
            let visit = |baton: &Baton<loom::cell::UnsafeCell<u32>>, token, times| {
                for _ in 0..times {
                    let guard = baton.enter(Token::numbered(token)).expect("this thread is not inside");
                    // SAFETY: loom checks that no other thread is inside.
                    guard.with_mut(|count| unsafe { *count += 1 });
                }
            };
            visit(&baton, 1, 2);
            let other = baton.clone();
            let thread = loom::thread::spawn(move || visit(&other, 2, 3));
            visit(&baton, 1, 1);
            thread.join().unwrap();
        });
    }

    /// A thread that is inside by bias and enters again is refused, even while another thread waits for it to leave.
    #[test]
    fn a_thread_inside_is_told_so_while_its_bias_is_revoked() {
        loom::model(|| {
            let baton = Arc::new(Baton::new(()));
            for _ in 0..2 {
                drop(baton.enter(Token::numbered(1)));
            }
            let other = baton.clone();
            let thread = loom::thread::spawn(move || drop(other.enter(Token::numbered(2)).unwrap()));
            let guard = baton.enter(Token::numbered(1)).unwrap();
            assert!(baton.enter(Token::numbered(1)).is_none() && baton.enter_at_once(Token::numbered(1)).is_none());
            drop(guard);
            thread.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn what_was_found_out_holds_until_another_guard_was_there() {
        let (baton, me) = (Baton::new(0), Token::current());
        assert!(baton.enter_at_once(me).is_none(), "without bias");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(baton.enter_at_once(Token::at_hand()).is_none(), "this thread has no token yet");
                assert_eq!(Token::current(), Token::at_hand());
            });
        });
        if !Barriers::join().process {
            return;
        }
        for _ in 0..=STREAK {
            drop(baton.enter(me));
        }
        let enter = || baton.enter_at_once(me).expect("this thread has the bias");
        assert!(!enter().is_settled());
        enter().settle();
        *enter() += 1;
        assert!(enter().is_settled() && *enter() == 1);
        drop(baton.enter(me));
        assert!(!enter().is_settled(), "a biased guard was there");
        enter().settle();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(baton.enter(Token::current())));
        });
        assert!(baton.enter_at_once(me).is_none(), "its bias was revoked");
        for _ in 0..=STREAK {
            drop(baton.enter(me));
        }
        assert!(!enter().is_settled(), "a guard of another thread was there");
    }

    #[test]
    fn threads_exclude_each_other_while_bias_comes_and_goes() {
        let rounds = if cfg!(miri) { 200 } else { 20_000 };
        let baton = Arc::new(Baton::new(0_u64));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let baton = baton.clone();
                std::thread::spawn(move || {
                    for round in 0..rounds {
                        *baton.enter(Token::current()).unwrap() += 1;
                        if round % 1000 == 999 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*baton.enter(Token::current()).unwrap(), 3 * rounds);
    }

    #[test]
    fn a_thread_that_has_the_baton_does_not_get_it_again() {
        let baton = Baton::new(());
        for _ in 0..2 * STREAK {
            let guard = baton.enter(Token::current());
            assert!(guard.is_some());
            assert!(baton.enter(Token::current()).is_none());
        }
        assert_ne!(baton.bias.load(Ordering::Relaxed), 0, "the streak led to a bias");
    }

    /// A filter forbids the barrier in a process in which a thread has the bias. Nothing removes a filter, so the test uses a
    /// process of its own.
    #[test]
    #[cfg(not(miri))]
    fn a_barrier_that_fails_later_lets_nobody_in_and_gives_no_bias() {
        const PLAYS: &str = "DOORBELL_BATON_IS_FILTERED";
        let name = "engine::baton::tests::a_barrier_that_fails_later_lets_nobody_in_and_gives_no_bias";
        if std::env::var_os(PLAYS).is_none() {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let done = command.args(["--exact", name, "--nocapture"]).env(PLAYS, "yes").output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            return;
        }
        const ROUNDS: u64 = 100_000;
        let baton = Arc::new(Baton::new(0_u64));
        let often = |baton: &Baton<u64>, rounds| (0..rounds).for_each(|_| *baton.enter(Token::current()).unwrap() += 1);
        often(&baton, ROUNDS);
        assert_ne!(baton.bias.load(Ordering::Relaxed), 0, "no bias before the filter");
        forbid_membarrier();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let baton = baton.clone();
                std::thread::spawn(move || often(&baton, ROUNDS))
            })
            .collect();
        often(&baton, ROUNDS);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*baton.enter(Token::current()).unwrap(), 4 * ROUNDS, "two threads were inside at once");
        often(&baton, 3 * u64::from(STREAK));
        assert_eq!(baton.bias.load(Ordering::Relaxed), 0, "a bias that could not be revoked without waiting");
    }

    /// Makes `membarrier` fail for all threads of this process from now on.
    #[cfg(not(miri))]
    fn forbid_membarrier() {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let filter = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program lives through the call; the kernel copies it.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
            assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all_threads, &program), 0, "the filter was refused");
        }
    }
}
