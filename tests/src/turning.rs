//! Threads that only turn an engine.

use crate::patience::{Running, running};
use doorbell::Node;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns the engine of a node until it is dropped.
pub struct Turning {
    over: Arc<AtomicBool>,
    thread: Option<Running<()>>,
}

/// Starts to turn the engine of a node, for a test that needs its progress while no thread of the test waits there.
pub fn turning(node: &Node) -> Turning {
    let (node, over) = (node.clone(), Arc::new(AtomicBool::new(false)));
    let told = over.clone();
    let drive = move || {
        while !told.load(Ordering::Acquire) {
            node.progress().unwrap();
            std::thread::yield_now();
        }
    };
    Turning { over, thread: Some(running("a node is turned", drive)) }
}

impl Drop for Turning {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take().filter(|_| !std::thread::panicking()) {
            thread.join();
        }
    }
}
