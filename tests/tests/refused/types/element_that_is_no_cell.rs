use doorbell::{Key, Node, ReadOnly, ReadWrite};

fn cell(node: &Node, key: Key<[u8; 8], ReadWrite>) {
    node.cell(key).unwrap();
}

fn read_only(node: &Node, key: Key<u64, ReadOnly>) {
    node.cell(key).unwrap();
}

fn main() {}
