//! Aeron as a peer of Doorbell: an exclusive IPC publication for each direction.
//!
//! The stream is the tag. The media driver runs in the first process, in a thread that mostly sleeps: it only hands out limits.

use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::{self, Flow, Messages, Window};
use doorbell_benches::touch;
use doorbell_peers::order::Work;
use doorbell_peers::transport::{Fault, Result, Setup, TAG, Transport, unknown, until};
use doorbell_peers::worker;
use rusteron_client::{
    AERON_IPC_STREAM, Aeron, AeronCError, AeronContext, AeronExclusivePublication, AeronImage, AeronSubscription, Handlers,
    IntoCString,
};
use rusteron_media_driver::testing::EmbeddedDriver;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Bytes of the largest fragment that Aeron allows.
const MTU: usize = 65_504;
/// Bytes of a term, of which there are three in a publication, and an eighth of which a message may have.
const TERM_BYTES: usize = 64 << 20;
/// Fragments that are taken at once, at most, from a stream of small messages.
const BATCH: usize = 256;
/// How long the other process may take.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    worker::main::<OverAeron>()
}

struct OverAeron {
    // From the first to be closed to the last.
    back: AeronImage,
    out: AeronExclusivePublication,
    _subscription: AeronSubscription,
    _aeron: Aeron,
    _driver: Option<EmbeddedDriver>,
    crowded: bool,
    window: usize,
    buffers: Buffers,
    messages: Option<(usize, Messages)>,
}

fn fault(what: &str, error: impl std::fmt::Debug) -> Fault {
    format!("{what}: {error:?}").into()
}

fn driver(dir: &str) -> std::result::Result<EmbeddedDriver, rusteron_media_driver::AeronCError> {
    EmbeddedDriver::launch_with(|context| {
        context.set_dir(&dir.to_string().into_c_string())?;
        context.set_threading_mode(rusteron_media_driver::bindings::aeron_threading_mode_t::AERON_THREADING_MODE_SHARED)?;
        context.set_shared_idle_strategy(c"sleep-ns")?;
        context.set_shared_idle_strategy_init_args(c"500us")?;
        context.set_ipc_mtu_length(MTU)?;
        context.set_ipc_term_buffer_length(TERM_BYTES)?;
        context.set_term_buffer_sparse_file(false)?;
        Ok(())
    })
}

impl Transport for OverAeron {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        if matches!(order.work, Work::Put | Work::Loan) {
            return Err(unknown("Aeron", order.work));
        }
        let dir = setup.place.dir().join("aeron").display().to_string();
        let launched = if setup.node == 0 {
            let driver = driver(&dir).map_err(|error| fault("could not launch the media driver", error))?;
            setup.place.leave("driver", b"")?;
            Some(driver)
        } else {
            setup.place.find("driver", 0)?;
            None
        };
        let context = AeronContext::new()?;
        context.set_dir(&dir.into_c_string())?;
        context.set_pre_touch_mapped_memory(true)?;
        // Where processors are crowded, the driver may have to wait for one.
        context.set_driver_timeout_ms(60_000)?;
        let aeron = Aeron::new(&context)?;
        aeron.start()?;
        let stream = |node: usize| (TAG as i32) << 8 | node as i32;
        let out = aeron.async_add_exclusive_publication(AERON_IPC_STREAM, stream(setup.node))?.poll_blocking(PATIENCE)?;
        let subscription = aeron
            .async_add_subscription(AERON_IPC_STREAM, stream(setup.other()), Handlers::NONE, Handlers::NONE)?
            .poll_blocking(PATIENCE)?;
        let deadline = Instant::now() + PATIENCE;
        let back = loop {
            if out.is_connected()
                && let Some(image) = subscription.image_at_index(0)
            {
                break image;
            }
            if Instant::now() > deadline {
                return Err("the other process neither published nor subscribed".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        Ok(Self {
            back,
            out,
            _subscription: subscription,
            _aeron: aeron,
            _driver: launched,
            crowded: order.crowded(),
            window: order.window,
            buffers: setup.buffers()?,
            messages: None,
        })
    }

    fn version(&self) -> String {
        "Aeron 1.54.0 (rusteron 0.2.16)".into()
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let Self { back, out, crowded, buffers, .. } = self;
        let way = Way { out, back, crowded: *crowded };
        // Aeron hands out fragments in batches. Whoever takes one by one takes twice as long.
        if matches!(part, Part::Drain) && section.bytes <= MTU / 2 {
            return way.drain(section);
        }
        exchange::play(way, part, section, buffers).map(drop)
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let messages = match &mut self.messages {
            Some((room, messages)) if *room == bytes => messages,
            messages => &mut messages.insert((bytes, Messages::new(self.window, || Memory::private(bytes))?)).1,
        };
        stream::run(&mut Way { out: &self.out, back: &self.back, crowded: self.crowded }, flow, messages)
    }
}

struct Way<'a> {
    out: &'a AeronExclusivePublication,
    back: &'a AeronImage,
    crowded: bool,
}

impl Way<'_> {
    fn drain(&self, section: Section) -> Result<()> {
        let mut target = vec![0; section.bytes];
        let mut left = section.warmup + section.count;
        until(self.crowded, || {
            let most = BATCH.min(left);
            self.back.poll_fn(
                |fragment, _| {
                    target.copy_from_slice(fragment);
                    if section.touched {
                        touch::read(&target);
                    }
                    left -= 1;
                },
                most,
            )?;
            Ok::<_, AeronCError>((left == 0).then_some(()))
        })?;
        Ok(())
    }
}

impl Carrier for Way<'_> {
    type Error = Fault;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        until(self.crowded, || match self.out.offer(message) {
            Ok(_) => Ok(Some(())),
            Err(error) if error.is_retryable() => Ok(None),
            Err(error) => Err(fault("could not send", error)),
        })
    }

    /// Fragments are put together where they belong, without a copy in between.
    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        until(self.crowded, || {
            self.back.poll_fn(
                |fragment, _| {
                    into[filled..filled + fragment.len()].copy_from_slice(fragment);
                    filled += fragment.len();
                },
                1,
            )?;
            Ok::<_, AeronCError>((filled == into.len()).then_some(()))
        })?;
        Ok(())
    }
}

/// A message is on its way when `send` returns, and is copied when its turn has come.
impl Window for Way<'_> {
    type Error = Fault;
    type Sent = Memory;
    type Received = Memory;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<Memory> {
        self.send(&message)?;
        Ok(message)
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Memory) -> Result<Memory> {
        Ok(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<Memory> {
        Ok(into)
    }

    #[inline(always)]
    fn finish_receive(&mut self, mut received: Memory) -> Result<Memory> {
        self.receive(&mut received)?;
        Ok(received)
    }
}
