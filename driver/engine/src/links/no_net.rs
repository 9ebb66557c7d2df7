//! The network in a build without the feature `udp`: no value of these types exists, so what uses them is never compiled in.

#![allow(missing_docs, clippy::missing_safety_doc)]

pub use super::bell_port::{AnyPort, port_of_bell, watch};

use super::AnyLink;
use doorbell_fabric::{BytesIn, BytesOut, Incarnation, NodeId, PacketHead, Priority, Push, Sink, TransferId};
use doorbell_shm::domain::Member;
use doorbell_shm::doorbell::Bell;
use doorbell_shm::fabric::{Change, ShmFabric};
use doorbell_shm::lane::Outstanding;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub enum UdpLink {}

impl UdpLink {
    pub fn packet_bytes(&self) -> usize {
        match *self {}
    }

    pub unsafe fn push(&mut self, _: &PacketHead, _: *const u8, _: usize) -> Push {
        match *self {}
    }

    pub fn push_held(&mut self, _: &PacketHead, _: &[u8]) -> Push {
        match *self {}
    }

    pub fn begin_transfer(&self, _: TransferId, _: Range<u64>, _: u64, _: Arc<dyn BytesOut>) -> Option<bool> {
        match *self {}
    }

    pub fn outstanding(&self) -> Option<Outstanding> {
        match *self {}
    }

    pub fn refused(&self) -> bool {
        match *self {}
    }

    pub fn most_at_once(&self) -> usize {
        match *self {}
    }

    pub fn has_room(&self, _: usize, _: usize) -> bool {
        match *self {}
    }
}

pub enum Net {}

impl Net {
    pub fn release(&self) {
        match *self {}
    }

    pub fn end(&mut self) {
        match *self {}
    }

    pub fn poll<S: Sink>(&mut self, _: &mut ShmFabric, _: &mut S, _: usize, _: bool) -> usize {
        match *self {}
    }

    pub fn was_chatter(&self) -> bool {
        match *self {}
    }

    pub fn look(&mut self, _: &mut ShmFabric) {
        match *self {}
    }

    pub fn next_change(&mut self, _: &mut ShmFabric) -> Option<Change> {
        match *self {}
    }

    pub fn live(&self, _: NodeId) -> Option<Incarnation> {
        match *self {}
    }

    pub fn members(&self) -> Vec<Member> {
        match *self {}
    }

    pub fn connect(&self, _: NodeId, _: Incarnation, _: Priority) -> Option<AnyLink> {
        match *self {}
    }

    pub fn links(&self, _: NodeId, _: Incarnation) -> usize {
        match *self {}
    }

    pub fn connect_by(&self, _: NodeId, _: Incarnation, _: u8, _: Priority) -> Option<AnyLink> {
        match *self {}
    }

    pub fn expect(&self, _: NodeId, _: Incarnation, _: u8, _: u64, _: &Arc<dyn BytesIn>) -> Option<u64> {
        match *self {}
    }

    pub fn expel(&mut self, _: NodeId) {
        match *self {}
    }

    pub fn has_news(&self) -> bool {
        match *self {}
    }

    pub fn timeout(&self, _: Duration) -> Duration {
        match *self {}
    }

    pub fn refusing(&self) -> bool {
        match *self {}
    }
}

pub enum Network {}

impl Network {
    pub fn net(&self, _: usize) -> Net {
        match *self {}
    }

    pub fn is_settling(&self) -> bool {
        match *self {}
    }

    pub fn on_gather(&self, _: impl Fn() + Send + 'static) {
        match *self {}
    }

    pub fn node_at(&self, _: SocketAddr) -> Option<NodeId> {
        match *self {}
    }

    pub fn addresses(&self) -> &[SocketAddr] {
        match *self {}
    }

    pub fn abandon(&self) {
        match *self {}
    }

    pub fn shut(&self) {
        match *self {}
    }

    pub fn sleep(&self, _: &Bell, _: u32, _: Duration) {
        match *self {}
    }

    pub fn with_port<T>(&self, _: impl FnOnce(&mut AnyPort) -> io::Result<T>) -> io::Result<T> {
        match *self {}
    }
}
