//! The content that a session carries, and its handling when datagrams arrive or are lost.

use crate::protocol::lane::{LaneIn, LaneOut};
use crate::protocol::loss::Carried;
use crate::protocol::transfer::{TransfersIn, TransfersOut};
use doorbell_fabric::{PRIORITIES, Priority};
use std::collections::VecDeque;

/// The progress of a session's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closing {
    No,
    /// Everything is sent first.
    Finishing {
        code: u8,
    },
    /// The other end is being told.
    Telling {
        code: u8,
        told: bool,
    },
    /// The other end knows.
    Known,
}

pub(crate) struct Cargo {
    pub lanes_out: [LaneOut; PRIORITIES],
    pub lanes_in: [LaneIn; PRIORITIES],
    pub transfers_out: TransfersOut,
    pub transfers_in: TransfersIn,
    /// Grants and cancellations to be sent once each, and again if they were lost.
    pub controls: VecDeque<Carried>,
    pub closing: Closing,
}

impl Cargo {
    /// `windows`: the bytes that the other end keeps for us on each lane, and we for it.
    pub fn new(windows: (u64, u64), buffer: usize) -> Self {
        Self {
            lanes_out: Priority::ALL.map(|priority| LaneOut::new(priority, windows.0, buffer)),
            lanes_in: Priority::ALL.map(|priority| LaneIn::new(priority, windows.1)),
            transfers_out: TransfersOut::default(),
            transfers_in: TransfersIn::default(),
            controls: VecDeque::new(),
            closing: Closing::No,
        }
    }

    /// Whether packets or transfers wait to be sent.
    #[inline]
    pub fn has_bulk(&self) -> bool {
        Priority::ALL
            .into_iter()
            .any(|priority| self.lanes_out[priority.index()].has_work() || self.transfers_out.has_work(priority))
    }

    /// Whether small items wait to be sent.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.controls.is_empty()
            || self.lanes_in.iter().any(|lane| lane.untold)
            || matches!(self.closing, Closing::Telling { told: false, .. })
    }

    /// Whether everything that was pushed has arrived.
    pub fn is_idle(&self) -> bool {
        self.lanes_out.iter().all(LaneOut::is_idle) && self.transfers_out.is_idle()
    }

    /// Records that the other end has this item.
    #[inline]
    pub fn arrived(&mut self, what: Carried) {
        match what {
            Carried::Packets { lane, first, count } => self.lanes_out[usize::from(lane)].on_packets_acked(first, count),
            Carried::Fragment { lane, sequence, offset, len } => {
                self.lanes_out[usize::from(lane)].on_fragment_acked(sequence, offset, len);
            }
            Carried::Data { transfer, offset, len } => self.transfers_out.on_acked(transfer, offset, len),
            Carried::Close => self.closing = Closing::Known,
            _ => {}
        }
    }

    /// Queues this item to be sent again. Returns how many bytes of packets and transfers it holds.
    pub fn again(&mut self, what: Carried) -> u64 {
        match what {
            Carried::Packets { lane, first, count } => return self.lanes_out[usize::from(lane)].on_packets_lost(first, count),
            Carried::Fragment { lane, sequence, offset, len } => {
                return self.lanes_out[usize::from(lane)].on_fragment_lost(sequence, offset, len);
            }
            Carried::Data { transfer, offset, len } => return self.transfers_out.on_lost(transfer, offset, len),
            Carried::Credit { lane } => self.lanes_in[usize::from(lane)].untold = true,
            Carried::Grant { transfer } if self.transfers_in.limit(transfer).is_none() => {}
            Carried::Grant { .. } | Carried::Cancel { .. } => self.tell(what),
            Carried::Close => {
                if let Closing::Telling { told, .. } = &mut self.closing {
                    *told = false;
                }
            }
            Carried::Answer { .. } | Carried::Probe { .. } | Carried::Nothing => {}
        }
        0
    }

    /// Queues an item; duplicates are sent once.
    pub fn tell(&mut self, control: Carried) {
        if !self.controls.contains(&control) {
            self.controls.push_back(control);
        }
    }
}
