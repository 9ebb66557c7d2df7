//! An outsider sees what nodes do. The test fails when the layout changes and the example was not changed with it.

use doorbell::{Match, Node};
use doorbell_outsider::{Kind, Segment};

#[test]
fn an_outsider_reads_a_board_and_a_region() {
    let domain = format!("outsider-{}", std::process::id());
    let a = Node::builder(&domain).join().unwrap();
    let b = Node::builder(&domain).join().unwrap();
    let peer = a.peer(b.id()).unwrap();
    for _ in 0..3 {
        peer.send(1, &[7; 100]).unwrap();
        b.recv(Match::any(), &mut [0; 100]).unwrap();
    }

    let board = Segment::open(&format!("{domain}.{}.board", b.id())).unwrap();
    assert_eq!((board.kind(), board.owner()), (Kind::Board, (u64::from(b.id().0), u64::from(b.incarnation().0))));
    assert!(board.data(1).is_empty());
    let sender = Segment::open(&format!("{domain}.{}.board", a.id())).unwrap();
    // A board follows its node at the latest when the engine turns.
    let sees = |segment: &Segment, expected: [u64; 4]| {
        let values: Vec<u64> = segment.metrics().iter().map(|(_, value)| *value).collect();
        values == expected
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !(sees(&board, [3, 300, 0, 0]) && sees(&sender, [0, 0, 3, 300])) {
        assert!(std::time::Instant::now() < deadline, "{:?} {:?}", board.metrics(), sender.metrics());
        assert!(a.try_recv(Match::any(), &mut []).unwrap().is_none() && b.try_recv(Match::any(), &mut []).unwrap().is_none());
    }

    let region = b.region::<u64>(4).unwrap();
    let prefix = format!("{}.r", b.id());
    let number = std::fs::read_dir("/dev/shm")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .find_map(|name| name.split_once(&format!("{domain}.{prefix}"))?.1.parse::<u32>().ok())
        .expect("the region's file");
    a.peer(b.id()).unwrap().put(&[0, 0x1122], region.key()).unwrap();
    let segment = Segment::open(&format!("{domain}.{prefix}{number}")).unwrap();
    assert_eq!((segment.kind(), segment.data(2)), (Kind::Region, vec![0, 0x1122]));
    assert!(segment.metrics().is_empty());
}

#[test]
fn other_files_are_refused_with_a_reason() {
    let domain = format!("outsider-odd-{}", std::process::id());
    let node = Node::builder(&domain).join().unwrap();
    let refused = |name: String| Segment::open(&name).err().map(|trouble| trouble.to_string()).unwrap();
    assert!(refused(format!("{domain}.{}.inbox", node.id())).contains("of kind 2"));
    assert!(refused(format!("{domain}.9.board")).contains("`ls /dev/shm`"));
    // The owner of an ordinary file wrote no header.
    let path = format!("/dev/shm/doorbell.{}.{domain}.odd", own_user());
    std::fs::write(&path, [0; 4096]).unwrap();
    let why = refused(format!("{domain}.odd"));
    std::fs::remove_file(&path).unwrap();
    assert!(why.contains("no segment of Doorbell"), "{why}");
}

fn own_user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid()
}
