//! iceoryx2 as a peer of Doorbell: one service for each direction, with one publisher and one subscriber.
//!
//! The tag is the user header of a sample. A message is written into a loaned sample and copied out of the received one; in the
//! loan table it is written and read in place.

use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section, Side};
use doorbell_benches::stream::{self, Flow};
use doorbell_benches::touch;
use doorbell_peers::batch::{self, Batches};
use doorbell_peers::order::{Over, Work};
use doorbell_peers::transport::{AtOnce, Fault, Result, Setup, StreamBuffers, TAG, Transport, unknown, until};
use doorbell_peers::worker;
use iceoryx2::config::Config;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use iceoryx2::sample::Sample;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Out = Publisher<ipc::Service, [u8], u64>;
type In = Subscriber<ipc::Service, [u8], u64>;

/// The most samples that wait to be received when many small ones are sent.
const QUEUE: usize = 256;
/// The timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    worker::main::<Iceoryx2>()
}

struct Iceoryx2 {
    out: Out,
    back: In,
    work: Work,
    crowded: bool,
    buffers: Buffers,
    messages: StreamBuffers,
    count: u64,
    // Dropped last.
    _node: Node<ipc::Service>,
}

fn fault(what: &str, error: impl std::fmt::Debug) -> Fault {
    format!("{what}: {error:?}").into()
}

impl Transport for Iceoryx2 {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        if matches!(order.work, Work::Put | Work::Handler) || order.over != Over::Memory {
            return Err(unknown("iceoryx2", order.work, order.over));
        }
        set_log_level(LogLevel::Error);
        let mut config = Config::default();
        let root = order.dir.join("iceoryx2").display().to_string();
        config.global.set_root_path(&Path::new(root.as_bytes()).map_err(|error| fault("the directory", error))?);
        config.global.prefix =
            FileName::new(format!("{}_", order.prefix).as_bytes()).map_err(|error| fault("the prefix", error))?;
        let node = NodeBuilder::new().config(&config).create::<ipc::Service>().map_err(|error| fault("no node", error))?;
        let queue = if matches!(order.work, Work::Rate | Work::Batch) { QUEUE } else { order.window };
        let service = |from: usize| {
            let name = format!("from-{from}");
            let name: ServiceName = name.as_str().try_into().map_err(|error| fault("the name of a service", error))?;
            node.service_builder(&name)
                .publish_subscribe::<[u8]>()
                .user_header::<u64>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(queue)
                .open_or_create()
                .map_err(|error| fault("no service", error))
        };
        let out = service(setup.node)?
            .publisher_builder()
            .initial_max_slice_len(order.bytes())
            .max_loaned_samples(2)
            .backpressure_strategy(BackpressureStrategy::DiscardData)
            .create()
            .map_err(|error| fault("no publisher", error))?;
        let there = service(setup.other())?;
        let back = there.subscriber_builder().buffer_size(queue).create().map_err(|error| fault("no subscriber", error))?;
        // Samples published before the subscription are lost.
        let mine = service(setup.node)?;
        let deadline = Instant::now() + PATIENCE;
        while mine.dynamic_config().number_of_subscribers() == 0 || there.dynamic_config().number_of_publishers() == 0 {
            if Instant::now() > deadline {
                return Err("the other process neither subscribed nor published in time".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        out.update_connections().map_err(|error| fault("no connection", error))?;
        Ok(Self {
            out,
            back,
            work: order.work,
            crowded: order.crowded(),
            buffers: setup.buffers()?,
            messages: StreamBuffers::new(order),
            count: 0,
            _node: node,
        })
    }

    fn version(&self) -> String {
        "iceoryx2 0.10.0".into()
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let Self { out, back, work, crowded, buffers, count, .. } = self;
        let way = Way { out, back, crowded: *crowded };
        if *work == Work::Loan {
            // Lines are touched where the message lies.
            let untouched = Section { touched: false, ..section };
            *count = exchange::play(OnLoan { way, touched: section.touched, count: *count }, part, untouched, buffers)?.count;
        } else {
            exchange::play(way, part, section, buffers)?;
        }
        Ok(())
    }

    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        batch::play(&mut Way { out: &self.out, back: &self.back, crowded: self.crowded }, side, section)
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let messages = self.messages.of(bytes)?;
        stream::run(&mut AtOnce(Way { out: &self.out, back: &self.back, crowded: self.crowded }), flow, messages)
    }
}

struct Way<'a> {
    out: &'a Out,
    back: &'a In,
    crowded: bool,
}

impl Way<'_> {
    #[inline(always)]
    fn next(&self) -> Result<Sample<ipc::Service, [u8], u64>> {
        let sample = until(self.crowded, || self.back.receive()).map_err(|error| fault("could not receive", error))?;
        if *sample.user_header() == TAG { Ok(sample) } else { Err("a message with another tag came".into()) }
    }
}

impl Carrier for Way<'_> {
    type Error = Fault;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        // iceoryx2's own way of waiting for a place in the queue sleeps longer and longer.
        until(self.crowded, || {
            let mut sample = self.out.loan_slice_uninit(message.len()).map_err(|error| fault("could not get a loan", error))?;
            *sample.user_header_mut() = TAG;
            let receivers = sample.write_from_slice(message).send().map_err(|error| fault("could not send", error))?;
            Ok((receivers > 0).then_some(()))
        })
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        into.copy_from_slice(self.next()?.payload());
        Ok(())
    }
}

struct OnLoan<'a> {
    way: Way<'a>,
    touched: bool,
    count: u64,
}

impl Carrier for OnLoan<'_> {
    type Error = Fault;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut sample = self.way.out.loan_slice_uninit(message.len()).map_err(|error| fault("no loan", error))?;
        *sample.user_header_mut() = TAG;
        // SAFETY: bytes of shared memory, which keep whatever was written before.
        let mut sample = unsafe { sample.assume_init() };
        if self.touched {
            self.count += 1;
            touch::write(sample.payload_mut(), self.count);
        }
        match sample.send().map_err(|error| fault("could not send", error))? {
            0 => Err("the other process has no place for a loan".into()),
            _ => Ok(()),
        }
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> Result<()> {
        let sample = self.way.next()?;
        if self.touched {
            touch::read(sample.payload());
        }
        Ok(())
    }
}

/// iceoryx2 sends one sample by one call. A subscriber takes what is there.
impl Batches for Way<'_> {
    const IN_PLACE: bool = true;

    #[inline(always)]
    fn send(&mut self, bytes: usize, count: usize, mut write: impl FnMut(&mut [u8])) -> Result<()> {
        for _ in 0..count {
            until(self.crowded, || {
                let mut sample = self.out.loan_slice_uninit(bytes).map_err(|error| fault("could not get a loan", error))?;
                *sample.user_header_mut() = TAG;
                // SAFETY: bytes of shared memory, which keep whatever was written before.
                let mut sample = unsafe { sample.assume_init() };
                write(sample.payload_mut());
                let receivers = sample.send().map_err(|error| fault("could not send", error))?;
                Ok::<_, Fault>((receivers > 0).then_some(()))
            })?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, limit: usize, mut read: impl FnMut(&[u8])) -> Result<usize> {
        read(self.next()?.payload());
        let mut taken = 1;
        while taken < limit {
            let Some(sample) = self.back.receive().map_err(|error| fault("could not receive", error))? else { break };
            if *sample.user_header() != TAG {
                return Err("a message with another tag came".into());
            }
            read(sample.payload());
            taken += 1;
        }
        Ok(taken)
    }
}
