//! Known answers: the bytes that `docs/wire.md` describes.

use super::config;
use crate::protocol::frame::{self, Short};
use crate::protocol::handshake::{self, DomainSecret, Hello, Params, Rejection};
use crate::protocol::header::Header;
use crate::protocol::random::Random;
use crate::protocol::wire::{IntoBytes, Writer};
use doorbell_fabric::{PacketHead, PacketKind, Priority};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn written(write: impl FnOnce(&mut Writer)) -> String {
    let mut buf = [0xee; 100];
    let mut writer = Writer::new(&mut buf);
    write(&mut writer);
    let len = writer.len();
    hex(&buf[..len])
}

#[test]
fn frames() {
    let (transfer, limit) = (0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let short = [
        (Short::Ping, "01"),
        (Short::Close(0xf1), "03f10000"),
        (Short::Challenge(transfer), "040000000807060504030201"),
        (Short::Response(transfer), "050000000807060504030201"),
        (Short::Grant { transfer, limit }, "0700000008070605040302011817161514131211"),
        (Short::Cancel { transfer, by_receiver: true }, "0801000008070605040302010000000000000000"),
        (Short::Credit { priority: Priority::Low, refused: true, stamp: 0x2122_2324, limit }, "1a010000242322211817161514131211"),
    ];
    for (frame, bytes) in short {
        assert_eq!(written(|writer| frame.write(writer)), bytes, "{frame:?}");
    }
    let ranges = [(90, 100), (70, 80), (10, 10)];
    assert_eq!(
        written(|writer| frame::write_ack(writer, 0x0102_0304, ranges.into_iter())),
        "02020000040302016400000000000000".to_owned() + "0a000000" + "080000000a000000" + "3a00000000000000"
    );
    assert_eq!(
        written(|writer| frame::write_data_head(writer, transfer, 5, limit, 0x0203)),
        "060003020807060504030201".to_owned() + "0500000000000000" + "1817161514131211"
    );
    assert_eq!(
        written(|writer| frame::write_fragment(writer, Priority::Normal, 7, 300, 256, &[1, 2, 3])),
        "15000300070000002c01000000010000010203"
    );
    let head = |kind| PacketHead { kind, tag: transfer, sequence: 0x3132_3334, total: limit };
    let mut image = [0; 22];
    frame::write_image(&mut image, Priority::High, 9, &head(PacketKind::Whole), &[8, 9]);
    assert_eq!(hex(&image), "100102000900000008070605040302013433323108".to_owned() + "09");
    let mut image = [0; 28];
    frame::write_image(&mut image, Priority::Low, 9, &head(PacketKind::First), &[]);
    assert_eq!(hex(&image), "12020000090000000807060504030201343332311817161514131211");
}

#[test]
fn headers_and_requests() {
    let header = Header::new(3, 0x0102, 0x0a0b_0c0d, 0x1112_1314_1516_1718);
    assert_eq!(hex(header.as_bytes()), "d80302010d0c0b0a1817161514131211");
    let config = config(1);
    let secret = DomainSecret::new(&config);
    let hello = Hello::new(&secret, (1, 1), 0x0102_0304, 0x0102_0304_0506_0708);
    let prologue = "010001000403020108070605040302011565416fb694d29700000000";
    let datagram = handshake::write_hello(&secret, &hello);
    assert_eq!(hex(&datagram[..48]), format!("d044424c{prologue}a50806833320c42c667ad6f4c3a08d0e"));
    assert_eq!(datagram.len(), 56);
    let open = handshake::write_open(&secret, &hello, &[0xcc; 24], &[1, 2, 3]);
    assert_eq!(hex(&open[..61]), format!("d244424c{prologue}{}0300010203", "cc".repeat(24)));
    let name = "040302010807060504030201";
    assert_eq!(hex(&handshake::write_retry(&secret, &hello, &[0xcc; 24])[..40]), format!("d144424c{name}{}", "cc".repeat(24)));
    assert_eq!(hex(&handshake::write_accept(&secret, &hello, 7, &[9])[..23]), format!("d344424c{name}07000000010009"));
    let why = Rejection::Version { lowest: 1, highest: 2 };
    assert_eq!(hex(&handshake::write_reject(&secret, &hello, why)[..28]), format!("d444424c{name}010000000100020000000000"));
}

#[test]
fn parameters() {
    let mut config = config(0x0102);
    config.greeting = vec![0xaa; 3];
    config.addresses = vec!["1.2.3.4:258".parse().unwrap(), "[fd00::7]:9".parse().unwrap()];
    config.links = vec![config.links[0]; 2];
    let bytes = Params::new(&config, &config.links[0], 0, &mut Random::new([1; 32])).write();
    // An MTU of 1500 leaves 1452 bytes; the window is 1 MiB and the delay 500 microseconds.
    assert_eq!(hex(&bytes[..22]), "0201000166010000ac05030000001000f40100000000");
    let addresses =
        "02000000".to_owned() + "00000000000000000000ffff01020304" + "0201ac05" + "fd000000000000000000000000000007" + "0900ac05";
    assert_eq!(hex(&bytes[38..]), "aaaaaa".to_owned() + &addresses);
}
