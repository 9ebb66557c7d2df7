//! Puts and gets through the lanes to a node that makes no call: its poller answers, which sleeps until a doorbell rings.

use doorbell_tests::pair::{Pair, mode, serving};
use doorbell_tests::patience::eventually;
use doorbell_tests::steps::Steps;
use doorbell_tests::{Turn, pattern};
use std::time::Duration;

const LEN: usize = 1 << 20;
/// How much longer an idle node may take than one in its call, ...
const TIMES: u32 = 5;
/// ... or this: a busy machine holds a thread up for as long as that.
const FLOOR: Duration = Duration::from_millis(300);

#[test]
fn an_idle_node_on_a_network_answers_as_fast_as_one_in_its_call() {
    let _turn = Turn::take();
    let [a, b] = Pair::new().nodes();
    let region = b.region::<u8>(LEN).unwrap();
    let (peer, key) = (a.peer(b.id()).unwrap(), region.key());
    let by = mode("shm/transfer");
    let mut round = 0;
    let mut put_and_get = |puts: &Steps, gets: &Steps| {
        round += 1;
        let (bytes, mut got) = (pattern::bytes(LEN, round), vec![0; LEN]);
        puts.step(|| peer.put_as(&bytes, key, by).unwrap());
        gets.step(|| peer.get_as(key, &mut got, by).unwrap());
        pattern::check(&got, round);
    };
    let [puts, gets] = ["puts to a node in its call", "gets from a node in its call"].map(Steps::of);
    let server = serving(&b);
    (0..20).for_each(|_| put_and_get(&puts, &gets));
    drop(server);
    let [idle_puts, idle_gets] = ["puts to an idle node", "gets from an idle node"].map(Steps::of);
    for _ in 0..5 {
        let parks = b.stats().unwrap().parks;
        eventually("its poller sleeps", || {
            std::thread::sleep(Duration::from_millis(2));
            b.stats().unwrap().parks > parks
        });
        put_and_get(&idle_puts, &idle_gets);
    }
    for (idle, served) in [(idle_puts, puts), (idle_gets, gets)] {
        println!("{:?} in its call, {:?} idle", served.median(), idle.sorted());
        idle.check_against(served.median(), TIMES, FLOOR);
    }
}
