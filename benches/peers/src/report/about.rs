//! What the tables of a report show, in words.

use crate::launch::WINDOW;
use doorbell_peers::order::Work;
use doorbell_peers::transport::BATCH;

/// The end of a complete report.
pub const BEHIND: &str = "\n## Where others are ahead\n\n[Where others are ahead](behind.md) names the rows, the reasons, and the attempts to \
                      mend them.";

/// The introduction to the collectives.
pub const COLLECTIVES: &str = "The processes share memory. Two processes run on one processor each, four run two on each. Two poll while \
                           they wait; four yield to each other. One call follows right after the other. A number is the mean of a section of \
                           calls at the slowest member. Vectors hold `i64` and are combined in place; every result is checked.";

/// The introduction to the tables of overlap.
pub const OVERLAP: &str = "One process starts a transfer, computes, and waits until the transfer is complete. The first line of a table is \
                       the time of a transfer during which the process only waits. The computing lasts as long. The second line is \
                       the share of the transfer's time that the computing hides: 100 % if both together take as long as the \
                       computing, 0 % if they take twice as long. Threads that help the computing process run on the processor of \
                       the other process.";

/// The introduction to the tables over UDP.
pub const OVER_UDP: &str = "The same two processes without shared memory: datagrams on the loopback interface. Peers that encrypt are \
                        compared with Doorbell with a key, the others with Doorbell without one.";

/// What a table shows.
pub fn table(work: Work) -> String {
    match work {
        Work::Latency => {
            "Tagged messages back and forth between private buffers, one at a time; half a round trip, the median \
                          of some thousands."
                .into()
        }
        Work::Loan => "The same with messages that are written and read in place: nothing is copied.".into(),
        Work::Put => {
            "One process puts all but the last word of a message into the other's memory, then that word, which the \
                      other polls; half a round trip."
                .into()
        }
        Work::Rate => {
            "One process sends one message after another, the other receives them: the time until all have arrived.".into()
        }
        Work::Handler => {
            "Messages back and forth, one at a time, which a handler reads where they lie: Doorbell's `recv_many` with a limit of one, an \
             active message, a polled fragment of Aeron, which is written into the log. Half a round trip."
                .into()
        }
        Work::Batch => format!(
            "The same in the way that each peer offers for many small messages, {BATCH} at a time: Doorbell's `send_chunks` and \
             `recv_many`, active messages, posted receives that are completed together, claims and a polled handler. What can be \
             read where it lies is not copied out."
        ),
        Work::OneWay => format!(
            "One process sends one message after another, {WINDOW} of them under way at once: the time until all have arrived. GB \
             are powers of ten."
        ),
        Work::BothWays => format!("Both send and receive, {WINDOW} messages under way in each direction; the sum of both."),
        Work::Pairs => "Four processes, two on each processor, in pairs that exchange messages across. The mean, because \
                        waits for a processor matter here."
            .into(),
        Work::PutOverlap => {
            "One process puts into the memory of the other, which sleeps. Doorbell's poller executes a descriptor of an injection \
             FIFO."
                .into()
        }
        Work::SendOverlap => "One process sends and computes. The other receives.".into(),
        Work::ReceiveOverlap => "One process posts a receive and computes. The other then sends.".into(),
        Work::Barrier => {
            "All processes wait for each other. The bare barrier is an addition in shared memory to arrive, and a word that the last one raises.".into()
        }
        Work::Allreduce => "Each process writes its vector, gets the sum of all in its place, and reads that.".into(),
        Work::Broadcast => "The first process writes its vector; all others get it and read it. The first may be ahead by as many \
                            calls as there is room for."
            .into(),
        Work::Computing => "Before each allreduce every member works for a random 1 to 3 µs, which is the same for every \
                            peer. The work is part of the time. Doorbell synchronises its channels in the background; in the \
                            foreground, no call returns before all members have left its channel."
            .into(),
    }
}
