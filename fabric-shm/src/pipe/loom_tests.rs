//! Models of a pipe. Its ring has one word for each byte, which loom observes.

use super::{Apart, NoRead, NoWrite, Reader, Ring, View, Words, Writer};
use doorbell_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use std::sync::Arc;

struct Pipe {
    words: Words,
    ring: Vec<AtomicU64>,
    /// The means by which each side wakes the other.
    woken: (Mutex<[bool; 2]>, Condvar),
}

impl Pipe {
    fn new(ring: usize) -> Arc<Self> {
        let words = Words {
            written: Apart(AtomicU64::new(0)),
            read: Apart(AtomicU64::new(0)),
            reader_waits: Apart(AtomicU32::new(0)),
            writer_waits: Apart(AtomicU32::new(0)),
        };
        let ring = (0..ring).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { words, ring, woken: (Mutex::new([false; 2]), Condvar::new()) })
    }

    fn view(&self) -> View<'_> {
        View { words: &self.words, ring: Ring(&self.ring) }
    }

    fn wake(&self, side: usize) {
        self.woken.0.lock().unwrap()[side] = true;
        self.woken.1.notify_all();
    }

    fn sleep(&self, side: usize) {
        let mut woken = self.woken.0.lock().unwrap();
        while !woken[side] {
            woken = self.woken.1.wait(woken).unwrap();
        }
        woken[side] = false;
    }

    fn write(&self, writer: &mut Writer, byte: u8) {
        loop {
            match writer.try_write(&self.view(), &[byte]) {
                Ok(moved) => {
                    if moved.wake {
                        self.wake(0);
                    }
                    return;
                }
                Err(NoWrite::Full) => {
                    let _ = writer.wait(&self.view());
                    if writer.is_ready(&self.view()) {
                        // If another thread wakes this side anyway, the wake-up is merely superfluous.
                        if self.words.writer_waits.0.swap(0, Ordering::AcqRel) == 0 {
                            self.sleep(1);
                        }
                    } else {
                        self.sleep(1);
                    }
                }
                Err(why) => panic!("{why:?}"),
            }
        }
    }

    fn read(&self, reader: &mut Reader) -> Option<u8> {
        let mut byte = [0];
        loop {
            match reader.try_read(&self.view(), &mut byte) {
                Ok(moved) => {
                    if moved.wake {
                        self.wake(1);
                    }
                    return Some(byte[0]);
                }
                Err(NoRead::End) => return None,
                Err(NoRead::Empty) => {
                    let _ = reader.wait(&self.view());
                    if reader.is_ready(&self.view()) {
                        if self.words.reader_waits.0.swap(0, Ordering::AcqRel) == 0 {
                            self.sleep(0);
                        }
                    } else {
                        self.sleep(0);
                    }
                }
                Err(why) => panic!("{why:?}"),
            }
        }
    }
}

/// Bytes arrive in order through a ring of two, followed by the end. Both sides sleep when they must, and no wake-up is lost.
#[test]
fn bytes_come_in_order_and_then_the_end() {
    loom::model(|| {
        let pipe = Pipe::new(2);
        let other = pipe.clone();
        let reading = thread::spawn(move || {
            let mut reader = Reader::default();
            let read: Vec<u8> = std::iter::from_fn(|| other.read(&mut reader)).collect();
            read
        });
        let mut writer = Writer::default();
        (1..=3).for_each(|byte| pipe.write(&mut writer, byte));
        if writer.end(&pipe.view()) {
            pipe.wake(0);
        }
        assert_eq!(reading.join().unwrap(), [1, 2, 3]);
    });
}
