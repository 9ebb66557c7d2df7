//! Aeron as a peer of Doorbell: one exclusive publication for each direction, over IPC or over UDP.
//!
//! The stream id is the tag. For IPC the media driver runs in a mostly sleeping thread of the first process: it only hands out
//! limits. Over UDP the driver itself sends and receives, so each process has its own driver, which never sleeps. Each process
//! has only one processor, so the thread that waits for messages runs the driver (`INVOKER`): a spinning driver thread would take
//! the processor from it. Datagrams are as large as Aeron allows; windows and socket buffers are as large as the system allows.

use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section, Side};
use doorbell_benches::stream::{self, Flow};

use doorbell_benches::{Memory, touch};
use doorbell_peers::batch::{self, Batches};
use doorbell_peers::order::{Over, Work};
use doorbell_peers::transport::{AtOnce, Fault, Result, Setup, StreamBuffers, TAG, Transport, unknown, until};
use doorbell_peers::worker;
use rusteron_client::{
    AERON_IPC_STREAM, Aeron, AeronBufferClaim, AeronCError, AeronContext, AeronExclusivePublication, AeronImage,
    AeronSubscription, Handlers, IntoCString,
};
use rusteron_media_driver::testing::EmbeddedDriver;
use rusteron_media_driver::{AeronDriver, AeronDriverContext, bindings::aeron_threading_mode_t};
use std::ffi::{CStr, CString};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The largest fragment that Aeron allows, in bytes.
const MTU: usize = 65_504;
/// How long the thread of the driver for IPC sleeps between two looks.
const DRIVER_SLEEP: &CStr = c"500us";
/// The size of a term. A publication has three terms, and a message may take an eighth of one.
const TERM_BYTES: usize = 64 << 20;
/// The size of a term over UDP, where pages are touched beforehand.
const UDP_TERM_BYTES: usize = 16 << 20;
/// The requested size of socket buffers. The system may allow less.
const SOCKET_BYTES: usize = 4 << 20;
/// The most datagrams in one system call.
const VECTOR: u32 = 16;
/// The number of driver turns after a section that flush everything that was sent.
const LAST_TURNS: usize = 64;
/// The length of the message that confirms a stream.
const ARRIVED: usize = 8;
/// The most fragments taken at once from a stream of small messages.
const BATCH: usize = 256;
/// The timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    worker::main::<OverAeron>()
}

struct OverAeron {
    // In the order in which they must be closed.
    back: AeronImage,
    out: AeronExclusivePublication,
    _subscription: AeronSubscription,
    _aeron: Aeron,
    _driver: Option<EmbeddedDriver>,
    /// The driver, if this thread runs it.
    media: Option<Media>,
    crowded: bool,
    work: Work,
    buffers: Buffers,
    messages: StreamBuffers,
    /// The number of messages so far that were written where they lie.
    count: u64,
}

fn fault(what: &str, error: impl std::fmt::Debug) -> Fault {
    format!("{what}: {error:?}").into()
}

fn driver(dir: &str) -> std::result::Result<EmbeddedDriver, rusteron_media_driver::AeronCError> {
    EmbeddedDriver::launch_with(|context| {
        context.set_dir(&dir.to_string().into_c_string())?;
        context.set_threading_mode(aeron_threading_mode_t::AERON_THREADING_MODE_SHARED)?;
        // The strategy reads its arguments when it is set. Without them the thread sleeps for a nanosecond, and takes much of the
        // processor on which the first process runs.
        context.set_shared_idle_strategy_init_args(DRIVER_SLEEP)?;
        context.set_shared_idle_strategy(c"sleep-ns")?;
        context.set_ipc_mtu_length(MTU)?;
        context.set_ipc_term_buffer_length(TERM_BYTES)?;
        context.set_term_buffer_sparse_file(false)?;
        Ok(())
    })
}

/// A media driver for UDP and its context, which must live as long.
struct Media {
    driver: AeronDriver,
    _context: AeronDriverContext,
}

impl Media {
    fn start(dir: &str) -> std::result::Result<Self, rusteron_media_driver::AeronCError> {
        let allowed = |name: &str| {
            let most =
                std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok().and_then(|most| most.trim().parse().ok());
            SOCKET_BYTES.min(most.unwrap_or(SOCKET_BYTES))
        };
        let (receive, send) = (allowed("rmem_max"), allowed("wmem_max"));
        let context = AeronDriverContext::new()?;
        context.set_dir(&dir.to_string().into_c_string())?;
        context.set_threading_mode(aeron_threading_mode_t::AERON_THREADING_MODE_INVOKER)?;
        context.set_mtu_length(MTU)?;
        context.set_term_buffer_length(UDP_TERM_BYTES)?;
        context.set_term_buffer_sparse_file(false)?;
        context.set_socket_so_rcvbuf(receive)?;
        context.set_socket_so_sndbuf(send)?;
        context.set_rcv_initial_window_length(receive)?;
        context.set_sender_io_vector_capacity(VECTOR)?;
        context.set_receiver_io_vector_capacity(VECTOR)?;
        context.set_network_publication_max_messages_per_send(VECTOR)?;
        let driver = AeronDriver::new(&context)?;
        driver.start(true)?;
        driver.main_do_work()?;
        Ok(Self { driver, _context: context })
    }

    #[inline(always)]
    fn turn(&self) -> Result<()> {
        self.driver.main_do_work().map(drop).map_err(|error| fault("the media driver", error))
    }
}

/// Waits for another process that needs turns of the driver.
fn wait_for<T>(media: &Option<Media>, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(media) = media {
            media.turn()?;
        }
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{what} within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Transport for OverAeron {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        if matches!(order.work, Work::Put | Work::Loan) || order.over == Over::Sealed {
            return Err(unknown("Aeron", order.work, order.over));
        }
        let by_udp = order.over == Over::Udp;
        let name = if by_udp { format!("aeron.{}", setup.node) } else { "aeron".into() };
        let dir = setup.place.dir().join(name).display().to_string();
        let (mut launched, mut media) = (None, None);
        if by_udp {
            media = Some(Media::start(&dir).map_err(|error| fault("could not start the media driver", error))?);
        } else if setup.node == 0 {
            launched = Some(driver(&dir).map_err(|error| fault("could not launch the media driver", error))?);
            setup.place.leave("driver", b"")?;
        } else {
            setup.place.find("driver", 0)?;
        }
        let context = AeronContext::new()?;
        context.set_dir(&dir.into_c_string())?;
        context.set_pre_touch_mapped_memory(true)?;
        // On crowded processors the driver may have to wait for a processor.
        context.set_driver_timeout_ms(60_000)?;
        let aeron = Aeron::new(&context)?;
        aeron.start()?;
        let [there, here] = if by_udp { channels(setup)? } else { [AERON_IPC_STREAM.into(), AERON_IPC_STREAM.into()] };
        let stream = |node: usize| (TAG as i32) << 8 | node as i32;
        let publishing = aeron.async_add_exclusive_publication(&there, stream(setup.node))?;
        let out = wait_for(&media, "there was no publication", || Ok(publishing.poll()?))?;
        let subscribing = aeron.async_add_subscription(&here, stream(setup.other()), Handlers::NONE, Handlers::NONE)?;
        let subscription = wait_for(&media, "there was no subscription", || Ok(subscribing.poll()?))?;
        let back = wait_for(&media, "the other process neither published nor subscribed", || {
            Ok(if out.is_connected() { subscription.image_at_index(0) } else { None })
        })?;
        // The other process may still need turns of this driver.
        setup.place.leave("connected", b"")?;
        let connected = setup.place.dir().join(format!("connected.{}", setup.other()));
        wait_for(&media, "the other process did not connect", || Ok(connected.exists().then_some(())))?;
        Ok(Self {
            back,
            out,
            _subscription: subscription,
            _aeron: aeron,
            _driver: launched,
            media,
            crowded: order.crowded(),
            work: order.work,
            buffers: setup.buffers()?,
            messages: StreamBuffers::new(order),
            count: 0,
        })
    }

    fn version(&self) -> String {
        "Aeron 1.54.0 (rusteron 0.2.16)".into()
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let Self { back, out, media, crowded, buffers, .. } = self;
        let way = Way { out, back, media: media.as_ref(), crowded: *crowded };
        if self.work == Work::Handler {
            // Lines are touched where the message lies.
            let untouched = Section { touched: false, ..section };
            let handled = Handled { way, claim: Default::default(), touched: section.touched, count: self.count };
            self.count = exchange::play(handled, part, untouched, buffers)?.count;
            return Ok(());
        }
        // Aeron delivers fragments in batches. Taking them one by one takes twice as long.
        if matches!(part, Part::Drain) && section.bytes <= MTU / 2 {
            return way.drain(section);
        }
        exchange::play(way, part, section, buffers)?.last()
    }

    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        let way = Way { out: &self.out, back: &self.back, media: self.media.as_ref(), crowded: self.crowded };
        batch::play(&mut Claims { way, claim: Default::default() }, side, section)
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let messages = self.messages.of(bytes)?;
        let mut way = AtOnce(Way { out: &self.out, back: &self.back, media: self.media.as_ref(), crowded: self.crowded });
        stream::run(&mut way, flow, messages)?;
        let AtOnce(mut way) = way;
        if way.media.is_some() {
            // Turns of the driver send what waits in the log, so neither process stops before everything has arrived.
            if flow.receives > 0 {
                way.send(&[0; ARRIVED])?;
            }
            if flow.sends > 0 {
                way.receive(&mut [0; ARRIVED])?;
            }
        }
        way.last()
    }
}

/// The channels to the other process and to this one.
fn channels(setup: &Setup<'_>) -> Result<[CString; 2]> {
    // The port stays free until the driver takes it, because the kernel hands out other ports first.
    let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let theirs = String::from_utf8(setup.place.swap("port", own.to_string().as_bytes())?)?;
    let channel = |port: &str| CString::new(format!("aeron:udp?endpoint=127.0.0.1:{port}"));
    Ok([channel(&theirs)?, channel(&own.to_string())?])
}

struct Way<'a> {
    out: &'a AeronExclusivePublication,
    back: &'a AeronImage,
    media: Option<&'a Media>,
    crowded: bool,
}

impl Way<'_> {
    /// Runs the driver's pending work if this thread runs the driver.
    #[inline(always)]
    fn turn(&self) -> Result<()> {
        self.media.map_or(Ok(()), Media::turn)
    }

    /// Sends a message that is written where it lies.
    #[inline(always)]
    fn claim(&self, claim: &AeronBufferClaim, bytes: usize, write: impl FnOnce(&mut [u8])) -> Result<()> {
        until(self.crowded, || match self.out.try_claim(bytes, claim) {
            Ok(_) => Ok(Some(())),
            Err(error) if error.is_retryable() => Ok(None),
            Err(error) => Err(fault("could not claim a place", error)),
        })?;
        write(claim.data());
        claim.commit().map(drop).map_err(|error| fault("could not commit", error))
    }

    /// Waits for a fragment, and passes up to `limit` to the handler. Returns their number.
    #[inline(always)]
    fn poll(&self, limit: usize, mut read: impl FnMut(&[u8])) -> Result<usize> {
        until(self.crowded, || match self.back.poll_fn(|fragment, _| read(fragment), limit)? {
            0 => Ok(None),
            taken => Ok(Some(taken as usize)),
        })
    }

    fn last(self) -> Result<()> {
        if self.media.is_some() {
            for _ in 0..LAST_TURNS {
                self.turn()?;
            }
        }
        Ok(())
    }

    fn drain(&self, section: Section) -> Result<()> {
        let mut target = Memory::private(section.bytes)?;
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
        until(self.crowded, || {
            let sent = match self.out.offer(message) {
                Ok(_) => Some(()),
                Err(error) if error.is_retryable() => None,
                Err(error) => return Err(fault("could not send", error)),
            };
            self.turn()?;
            Ok(sent)
        })
    }

    /// Copies fragments directly to their place, without an intermediate copy.
    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        until(self.crowded, || {
            let taken = self.back.poll_fn(
                |fragment, _| {
                    into[filled..filled + fragment.len()].copy_from_slice(fragment);
                    filled += fragment.len();
                },
                1,
            )?;
            if taken == 0 {
                self.turn()?;
            }
            Ok((filled == into.len()).then_some(()))
        })
    }
}

/// Messages that are written into the log and read in a handler.
struct Handled<'a> {
    way: Way<'a>,
    claim: AeronBufferClaim,
    touched: bool,
    count: u64,
}

impl Carrier for Handled<'_> {
    type Error = Fault;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let Self { way, claim, touched, count } = self;
        *count += 1;
        way.claim(
            claim,
            message.len(),
            |place| if *touched { touch::write(place, *count) } else { place.copy_from_slice(message) },
        )
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> Result<()> {
        let touched = self.touched;
        let read = |fragment: &[u8]| {
            if touched {
                touch::read(fragment);
            }
        };
        self.way.poll(1, read).map(drop)
    }
}

struct Claims<'a> {
    way: Way<'a>,
    claim: AeronBufferClaim,
}

impl Batches for Claims<'_> {
    const IN_PLACE: bool = true;

    #[inline(always)]
    fn send(&mut self, bytes: usize, count: usize, mut write: impl FnMut(&mut [u8])) -> Result<()> {
        (0..count).try_for_each(|_| self.way.claim(&self.claim, bytes, &mut write))
    }

    #[inline(always)]
    fn receive(&mut self, limit: usize, read: impl FnMut(&[u8])) -> Result<usize> {
        self.way.poll(limit, read)
    }
}
