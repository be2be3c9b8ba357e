//! The public interface of `client`, as programs outside of this repository use it.
//!
//! A change that makes this file fail to compile, or a new item that the last test finds, changes
//! what other programs depend on. Then say so in CHANGELOG.md, and before 1.0 increment the minor
//! version for everything but an addition that leaves this file as it is.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpreempt_wire::client::{Client, ClientError, ClientOptions, EventStream, HintWriter};
use gpreempt_wire::event::Event;
use gpreempt_wire::hint_page::MappingError;
use gpreempt_wire::message::DecodeError;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::queue::QueueRecord;
use gpreempt_wire::reply::{Refusal, Reply};
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::text::Text;
use rustix::io::Errno;

/// Every public item, by its name. The compiler compares the types.
macro_rules! pins {
    ($($name:ident: $type:ty = $path:expr;)*) => {
        const PINNED: &[&str] = &[$(stringify!($name)),*];

        #[test]
        fn functions_have_the_types_that_programs_call_them_with() {
            $({
                let _: $type = $path;
            })*
        }
    };
}

type Answer<T> = Result<T, ClientError>;

pins! {
    new: fn(Role, &str) -> ClientOptions = ClientOptions::new;
    connect: fn(&ClientOptions) -> Answer<Client> = Client::connect;
    call: fn(&mut Client, &Request) -> Answer<Reply> = Client::call;
    expect_ok: fn(&mut Client, &Request) -> Answer<()> = Client::expect_ok;
    expect_ok_within: fn(&mut Client, &Request, Duration) -> Answer<()> = Client::expect_ok_within;
    snapshot: fn(&mut Client) -> Answer<String> = Client::snapshot;
    policy: fn(&mut Client, Option<PolicySettings>) -> Answer<PolicySettings> = Client::policy;
    queues: fn(&mut Client) -> Answer<Vec<QueueRecord>> = Client::queues;
    queue: fn(&mut Client, u64) -> Answer<QueueRecord> = Client::queue;
    is_connected: fn(&Client) -> bool = Client::is_connected;
    is_connected: fn(&HintWriter) -> bool = HintWriter::is_connected;
    follow: fn(Client, &Request) -> Answer<EventStream> = Client::follow;
    open_page: fn(Client) -> Answer<HintWriter> = Client::open_page;
    next_within: fn(&mut EventStream, Duration) -> Answer<Option<Event>> =
        EventStream::next_within;
    is_over: fn(&EventStream) -> bool = EventStream::is_over;
    dropped: fn(&EventStream) -> u64 = EventStream::dropped;
    claim: fn(&HintWriter) -> Option<usize> = HintWriter::claim;
    release: fn(&HintWriter, usize) = HintWriter::release;
    begin: fn(&HintWriter, usize, u64) -> bool = HintWriter::begin;
    end: fn(&HintWriter, usize) -> bool = HintWriter::end;
    is_no_daemon: fn(&ClientError) -> bool = ClientError::is_no_daemon;
}

/// A field more or less does not compile: programs build and take apart these options.
#[test]
fn options_have_these_fields() {
    let options = ClientOptions::new(Role::Agent, "pinned");
    let ClientOptions { paths, role, program, timeout } = options;
    let made: ClientOptions = ClientOptions {
        paths: Vec::<PathBuf>::clone(&paths),
        role,
        program: program as Text<32>,
        timeout,
    };
    assert_eq!((made.program.as_str(), made.timeout), ("pinned", Duration::from_secs(5)));
}

/// A variant more or less does not compile: programs decide by them.
fn variant(error: &ClientError) -> &'static str {
    match error {
        ClientError::NoDaemon { path: PathBuf { .. } } => "NoDaemon",
        ClientError::PermissionDenied { path: PathBuf { .. } } => "PermissionDenied",
        ClientError::BadPath { path: PathBuf { .. }, error: Errno { .. } } => "BadPath",
        ClientError::Version { daemon: 0..=u16::MAX } => "Version",
        ClientError::Refused(refusal) => {
            let _: &Refusal = refusal;
            "Refused"
        }
        ClientError::TimedOut { waited } => {
            let _: &Duration = waited;
            "TimedOut"
        }
        ClientError::HungUp => "HungUp",
        ClientError::Garbled(error) => {
            let _: &DecodeError = error;
            "Garbled"
        }
        ClientError::UnexpectedReply { request, reply } => {
            let _: (&&'static str, &&'static str) = (request, reply);
            "UnexpectedReply"
        }
        ClientError::Page(error) => {
            let _: &MappingError = error;
            "Page"
        }
        ClientError::Os(Errno { .. }) => "Os",
    }
}

#[test]
fn errors_have_these_variants() {
    assert_eq!(variant(&ClientError::HungUp), "HungUp");
}

#[test]
fn types_can_be_sent_and_waited_for() {
    fn is_sent<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    fn is_waited_for<T: AsFd>() {}
    fn is_error<T: std::error::Error + 'static>() {}
    fn is_iterator<T: Iterator<Item = Answer<Event>>>() {}
    is_sent::<Client>();
    is_sent::<EventStream>();
    // Threads share one writer, each with its own slot.
    is_shared::<HintWriter>();
    is_shared::<ClientError>();
    is_waited_for::<Client>();
    is_waited_for::<EventStream>();
    is_waited_for::<HintWriter>();
    is_error::<ClientError>();
    is_iterator::<EventStream>();
    let _: fn(&ClientOptions) -> ClientOptions = Clone::clone;
}

/// The name behind `pub fn`, also if the function is `const`.
fn public_function(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = rest.strip_prefix("const ").unwrap_or(rest).strip_prefix("fn ")?;
    rest.split(['(', '<']).next()
}

#[test]
fn every_public_function_is_pinned_here() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folder = std::fs::read_dir(source.join("client")).unwrap();
    let files = folder.map(|file| file.unwrap().path()).chain([source.join("client.rs")]);
    let mut found: Vec<String> = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        found.extend(text.lines().filter_map(public_function).map(str::to_owned));
    }
    found.sort();
    found.dedup();
    let mut pinned = PINNED.to_vec();
    pinned.sort_unstable();
    pinned.dedup();
    assert_eq!(found, pinned);
}
