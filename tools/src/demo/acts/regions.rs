//! Memory of one node that another node writes and reads, and keys that are refused.

use super::{FIRST, Stage, unlike};
use crate::demo::Order;
use crate::exit::Failure;
use doorbell::{Error, KEY_BYTES, Key, KeyFault, ReadOnly, ReadWrite};

/// The values that the host puts, and their place.
const VALUES: [u64; 3] = [7, 11, 13];
const AT: usize = 2;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A node puts into the memory of another, which does nothing");
    let (full, only_read): (Vec<u8>, Vec<u8>) = stage.ask(FIRST, &Order::Lend)?;
    let key = stage.done(Key::<u64, ReadWrite>::from_bytes(&full))?;
    stage.line(format_args!(
        "node 1 makes a region of {} words, and sends two keys of {KEY_BYTES} bytes: one to read and write, one to read",
        key.len()
    ));
    let peer = stage.done(stage.cast.node.peer(FIRST))?;
    stage.done(peer.put(&VALUES, key.at(AT)))?;
    let call = format!("node 0: put({VALUES:?}, key.at({AT}))");
    stage.line(format_args!("{call:<37}  =>  done: one copy by node 0's thread"));
    let mut got = vec![0; key.len()];
    stage.done(peer.get(stage.done(Key::<u64, ReadOnly>::from_bytes(&only_read))?, &mut got))?;
    stage.line(format_args!("node 0: get(key to read)               =>  {got:?}"));
    let seen: Vec<u64> = stage.ask(FIRST, &Order::Show)?;
    if seen != got || got[AT..][..VALUES.len()] != VALUES {
        return Err(unlike(format_args!("node 0 got {got:?}, node 1 has {seen:?}")));
    }
    stage.line(format_args!("node 1: region.read                    =>  {seen:?}: the same memory"));

    stage.line("");
    let refused = refusal(Key::<u64, ReadWrite>::from_bytes(&only_read), KeyFault::ReadOnly)?;
    stage.line(format_args!("node 0: puts with the key to read      =>  {refused}"));
    stage.ask::<()>(FIRST, &Order::Withdraw)?;
    let refused = refusal(peer.put(&VALUES, key.at(AT)), KeyFault::Stale)?;
    stage.line(format_args!("node 0: puts when it was withdrawn     =>  {refused}"));
    stage.say.word("region, key", "memory that peers may put to or get from, and the token that names it and limits the access");
    Ok(())
}

/// The error of a call that must fail for this reason.
fn refusal<T>(result: Result<T, Error>, expected: KeyFault) -> Result<Error, Failure> {
    match result {
        Err(error @ Error::Key { why, .. }) if why == expected => Ok(error),
        Err(error) => Err(unlike(format_args!("refused for another reason: {error}"))),
        Ok(_) => Err(unlike("an invalid key was accepted")),
    }
}
