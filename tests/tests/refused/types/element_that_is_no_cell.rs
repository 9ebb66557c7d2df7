use doorbell::atomic::RemoteCell;
use doorbell::{Key, Node, ReadOnly, ReadWrite};

fn cell(node: &Node, key: Key<[u8; 8], ReadWrite>) {
    RemoteCell::open(node, key).unwrap();
}

fn read_only(node: &Node, key: Key<u64, ReadOnly>) {
    RemoteCell::open(node, key).unwrap();
}

fn main() {}
