//! Requests and their answers.

use super::history::History;
use super::metrics::{Form, render};
use super::page;
use crate::bridge::Connection;
use crate::exit::Failure;
use crate::ls::domains;
use crate::top::watch::{Look, Watch};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// The most header lines of a request.
const HEADERS: usize = 64;
/// How long a client may take to send the head of a request.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long reading the boards may take for one answer.
const LOOK_TIME: Duration = Duration::from_secs(8);

/// The page loads nothing, from nowhere but its own address.
const POLICY: &str = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'";

/// The state that all connections share.
pub struct Server {
    domain: Option<String>,
    interval: Duration,
    /// Whether the address is for this machine alone.
    local: bool,
    seen: Mutex<Seen>,
    /// One look for `/metrics` at a time. The look itself holds the permit, so a client that hangs up leaves no queue of looks.
    metrics: Arc<Semaphore>,
    answered: AtomicU64,
}

/// The last look for the page, and what came before it.
#[derive(Default)]
pub struct Seen {
    pub look: Option<Arc<Look>>,
    pub history: History,
    /// Why the last look failed.
    pub trouble: Option<String>,
}

impl Server {
    pub fn new(domain: Option<String>, interval: Duration, local: bool) -> Self {
        let metrics = Arc::new(Semaphore::new(1));
        Self { domain, interval, local, seen: Mutex::default(), metrics, answered: AtomicU64::new(0) }
    }

    /// The number of answered requests.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the boards again and again, for the charts of the page.
    pub async fn look_often(self: &Arc<Self>) {
        let mut watch = Watch::new(self.domain.clone());
        let mut due = Instant::now();
        loop {
            let looked = tokio::task::spawn_blocking(move || {
                let look = watch.look();
                (watch, look)
            });
            match looked.await {
                Ok((again, look)) => {
                    watch = again;
                    self.note(look);
                }
                // The look panicked, which no board can cause. Begin anew.
                Err(error) => {
                    watch = Watch::new(self.domain.clone());
                    self.seen().trouble = Some(error.to_string());
                }
            }
            due = (due + self.interval).max(Instant::now());
            tokio::time::sleep_until(due.into()).await;
        }
    }

    fn note(&self, look: Result<Look, Failure>) {
        let mut seen = self.seen();
        match look {
            Ok(look) => {
                seen.history.add(&look);
                seen.look = Some(Arc::new(look));
                seen.trouble = None;
            }
            Err(failure) => seen.trouble = Some(failure.plain()),
        }
    }

    /// The metrics, read now.
    async fn metrics(&self, form: Form) -> Answer {
        const TOO_LONG: &str = "reading the boards took too long\n";
        let domain = self.domain.clone();
        let Ok(Ok(permit)) = tokio::time::timeout(LOOK_TIME, self.metrics.clone().acquire_owned()).await else {
            return Answer::plain(StatusCode::SERVICE_UNAVAILABLE, TOO_LONG.into());
        };
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let start = Instant::now();
            let mut found = domains().map_err(|failure| failure.plain())?;
            found.retain(|found| domain.as_ref().is_none_or(|domain| found.name == *domain));
            render(found, start.elapsed(), form)
        });
        match tokio::time::timeout(LOOK_TIME, read).await {
            Ok(Ok(Ok(text))) => Answer::new(StatusCode::OK, form.content(), text),
            Ok(Ok(Err(why))) => Answer::plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            Ok(Err(_)) => Answer::plain(StatusCode::INTERNAL_SERVER_ERROR, "the boards could not be read\n".into()),
            Err(_) => Answer::plain(StatusCode::SERVICE_UNAVAILABLE, TOO_LONG.into()),
        }
    }

    async fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Answer {
        // A page of a stranger can give its own name the address of this machine. Its requests then still carry that name.
        if self.local && !headers.get_all(HOST).iter().all(names_this_machine) {
            let why = "the header Host names another machine: use localhost, 127.0.0.1 or [::1]\n";
            return Answer::plain(StatusCode::MISDIRECTED_REQUEST, why.into());
        }
        if method != Method::GET && method != Method::HEAD {
            return Answer::plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
        }
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        const HTML: &str = "text/html; charset=utf-8";
        match path {
            "/" => Answer::new(StatusCode::OK, HTML, page::whole(&self.seen(), self.interval).into_string()),
            "/live" => Answer::new(StatusCode::OK, HTML, page::live(&self.seen(), self.interval).into_string()),
            "/metrics" => self.metrics(Form::accepted(accept)).await,
            "/healthz" => Answer::plain(StatusCode::OK, "ok\n".into()),
            _ => Answer::plain(StatusCode::NOT_FOUND, "there are /, /metrics and /healthz\n".into()),
        }
    }
}

/// Whether a host, with or without a port, is this machine by a name that nobody else can give away.
fn names_this_machine(host: &HeaderValue) -> bool {
    let authority = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

struct Answer {
    status: StatusCode,
    content: &'static str,
    body: String,
}

impl Answer {
    fn new(status: StatusCode, content: &'static str, body: String) -> Self {
        Self { status, content, body }
    }

    fn plain(status: StatusCode, body: String) -> Self {
        Self::new(status, "text/plain; charset=utf-8", body)
    }

    fn response(self) -> Response<String> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

/// Answers the one request of a connection.
pub async fn connection(server: &Server, connection: Connection) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| async move {
        let answer = server.answer(request.method(), request.uri().path(), request.headers()).await;
        server.answered.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(answer.response())
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(connection), service);
    // A client that sends no HTTP, or is gone, has got its answer or needs none.
    let _ = served.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_this_machine() {
        let is = |host: &'static str| names_this_machine(&HeaderValue::from_static(host));
        for host in ["localhost", "LocalHost:9464", "127.0.0.1", "127.0.0.1:80", "127.1.2.3:80", "[::1]", "[::1]:9464"] {
            assert!(is(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9464",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]:80",
            "a b",
        ] {
            assert!(!is(host), "{host}");
        }
    }
}
