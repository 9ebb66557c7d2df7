//! The process that reads a load.

use super::load::Place as Where;
use super::message::check;
use super::{BACKGROUND, LEAST, MESSAGE, OVER, Phase, Progress, READ, ReadPhase, Run, WRITER};
use crate::clock::now;
use crate::experiment::Trouble;
use crate::measure::buffer;
use doorbell::{Match, Node, Peer};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Reads and checks the messages of all phases, and behaves as the phases say.
pub fn read(run: &Run, node: &Node, at: &Progress) -> Result<Vec<ReadPhase>, Trouble> {
    let peer = node.peer(WRITER)?;
    let mut phases = Vec::new();
    for (number, phase) in run.load.phases.iter().enumerate() {
        at.phase.store(number as u64, Ordering::Relaxed);
        let most = phase.sizes.most().max(phase.background.as_ref().map_or(0, |background| background.size.0)).max(LEAST);
        let mut into = buffer(node, phase.memory == Where::Region, most)?;
        let (found, is_last) = read_phase(phase, &peer, &mut into, at)?;
        phases.push(found);
        peer.send(READ, &[])?;
        if is_last {
            break;
        }
    }
    Ok(phases)
}

fn read_phase(phase: &Phase, peer: &Peer, into: &mut [u8], at: &Progress) -> Result<(ReadPhase, bool), Trouble> {
    let mut found = ReadPhase::default();
    let wrong = |what: String| Trouble::Wrong(format!("phase '{}': {what}", phase.name));
    let mut all: Option<[u64; 3]> = None;
    let work = (phase.reader.work_us * 1e3) as u64;
    loop {
        if let Some([messages, background, is_last]) = all {
            if found.messages != messages {
                return Err(wrong(format!("{} of {messages} messages came", found.messages)));
            }
            if found.background == background {
                return Ok((found, is_last != 0));
            }
        }
        let envelope = peer.recv(Match::any(), into)?;
        let bytes = &into[..envelope.len];
        match envelope.tag {
            MESSAGE => {
                let due = check(bytes, found.messages).map_err(wrong)?;
                let moment = now();
                found.latency.record(moment.saturating_sub(due));
                found.messages += 1;
                found.bytes += bytes.len() as u64;
                found.end = moment;
                at.message.store(found.messages, Ordering::Relaxed);
                if work > 0 {
                    while now() < moment + work {
                        std::hint::spin_loop();
                    }
                }
                if phase.reader.stall_every > 0 && found.messages.is_multiple_of(phase.reader.stall_every) {
                    thread::sleep(Duration::from_millis(phase.reader.stall_ms));
                }
            }
            BACKGROUND => {
                check(bytes, found.background).map_err(|what| wrong(format!("background: {what}")))?;
                found.background += 1;
                found.background_bytes += bytes.len() as u64;
            }
            OVER => {
                let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                all = Some(words.try_into().map_err(|_| wrong("the end of a phase is malformed".into()))?);
            }
            _ => {}
        }
    }
}
