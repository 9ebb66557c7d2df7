//! The exchange of parameters and secrets: by Noise, or in clear without a key.

use super::Hello;
use super::params::Params;
use super::proof::{DomainSecret, OPEN_PROOF};
use crate::protocol::cipher::{Secrets, mac};
use crate::protocol::random::Random;
use crate::protocol::wire::IntoBytes;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::cell::RefCell;

const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The most bytes of a key exchange message.
const MESSAGE_MAX: usize = 1000;

/// The requesting end's half of a key exchange.
pub(crate) enum Exchange {
    Clear([u8; 16]),
    Noise(Box<snow::HandshakeState>),
}

impl Exchange {
    /// Begins the exchange. Returns the message for Open.
    pub fn begin(secret: &DomainSecret, hello: &Hello, params: &Params, random: &mut Random) -> Option<(Exchange, Vec<u8>)> {
        let Some(key) = &secret.key else { return Some((Exchange::Clear(params.fixed.share), params.write())) };
        let mut state = noise(key, random, hello)?.build_initiator().ok()?;
        let message = say(&mut state, params)?;
        Some((Exchange::Noise(Box::new(state)), message))
    }

    /// Completes the exchange with the answer. Returns the other end's parameters and the secrets.
    pub fn finish(&mut self, hello: &Hello, message: &[u8]) -> Option<(Params, Secrets)> {
        let (params, (send, receive)) = match self {
            Exchange::Clear(share) => {
                let params = Params::read(message)?;
                let secrets = secrets_of_shares(hello, share, &params.fixed.share);
                (params, secrets)
            }
            Exchange::Noise(state) => (hear(state, message)?, state.dangerously_get_raw_split()),
        };
        Some((params, Secrets { send, receive }))
    }
}

/// The content of an Open, read by the other end before it decides.
pub(crate) struct Asked {
    pub params: Params,
    noise: Option<Box<snow::HandshakeState>>,
}

impl Asked {
    pub fn read(secret: &DomainSecret, hello: &Hello, message: &[u8], random: &mut Random) -> Option<Asked> {
        let Some(key) = &secret.key else { return Some(Asked { params: Params::read(message)?, noise: None }) };
        let mut state = noise(key, random, hello)?.build_responder().ok()?;
        Some(Asked { params: hear(&mut state, message)?, noise: Some(Box::new(state)) })
    }

    /// Agrees. Returns the peer's parameters, the message for Accept, and the secrets.
    pub fn agree(self, hello: &Hello, ours: &Params) -> Option<(Params, Vec<u8>, Secrets)> {
        let Some(mut state) = self.noise else {
            let (receive, send) = secrets_of_shares(hello, &self.params.fixed.share, &ours.fixed.share);
            return Some((self.params, ours.write(), Secrets { send, receive }));
        };
        let message = say(&mut state, ours)?;
        let (receive, send) = state.dangerously_get_raw_split();
        Some((self.params, message, Secrets { send, receive }))
    }
}

/// The next message of the exchange, with parameters.
fn say(state: &mut snow::HandshakeState, params: &Params) -> Option<Vec<u8>> {
    let mut message = vec![0; MESSAGE_MAX];
    let len = state.write_message(&params.write(), &mut message).ok()?;
    message.truncate(len);
    Some(message)
}

/// The parameters in the other end's next message.
fn hear(state: &mut snow::HandshakeState, message: &[u8]) -> Option<Params> {
    let mut payload = [0; MESSAGE_MAX];
    let len = state.read_message(message, &mut payload).ok()?;
    Params::read(payload.get(..len)?)
}

/// The library's algorithms, with randomness from our seed.
struct Resolver(RefCell<Random>);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn snow::types::Random>> {
        Some(Box::new(self.0.borrow_mut().child()))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn snow::types::Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn snow::types::Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn snow::types::Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn noise<'k>(key: &'k [u8; 32], random: &mut Random, hello: &'k Hello) -> Option<snow::Builder<'k>> {
    let resolver = Box::new(Resolver(RefCell::new(random.child())));
    snow::Builder::with_resolver(NOISE.parse().ok()?, resolver).psk(0, key).ok()?.prologue(hello.as_bytes()).ok()
}

fn secrets_of_shares(hello: &Hello, asking: &[u8; 16], answering: &[u8; 16]) -> ([u8; 32], [u8; 32]) {
    let one = |label: &[u8]| mac(&OPEN_PROOF, &[label, hello.as_bytes(), asking, answering]);
    (one(b"doorbell asking"), one(b"doorbell answering"))
}
