use super::*;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A server at a free port, and a loop that makes pages until the value is dropped.
struct Served {
    address: SocketAddr,
    pages: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    pager: Option<JoinHandle<()>>,
}

fn serve() -> Served {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let server = MetricsServer::start(address, HostNames::default(), None, true).unwrap();
    let (pages, is_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (made, stop) = (Arc::clone(&pages), Arc::clone(&is_over));
    let pager = std::thread::spawn(move || {
        while !stop.load(Ordering::Relaxed) {
            let mut set = [PollFd::new(&server.shared.wanted, PollFlags::IN)];
            let limit = timespec(Duration::from_millis(10));
            if poll(&mut set, Some(&limit)).unwrap() > 0 {
                server.take_page_request().unwrap();
                let page = made.fetch_add(1, Ordering::Relaxed) + 1;
                server.publish(&format!("page {page}\n"), Duration::ZERO);
            }
        }
    });
    Served { address, pages, is_over, pager: Some(pager) }
}

impl Served {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    fn page(&self) -> String {
        get(self.address, "/metrics")
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = ask(address, path);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

impl Drop for Served {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.pager.take().unwrap().join().unwrap();
    }
}

/// Reads until the server closes the connection.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.read_to_end(&mut Vec::new()).is_ok() || stream.take_error().is_ok()
}

#[test]
fn every_request_gets_a_page_that_is_made_after_it() {
    let served = serve();
    for page in 1..=3 {
        assert!(served.page().ends_with(&format!("\r\n\r\npage {page}\n")));
    }
}

#[test]
fn idle_connections_keep_no_request_from_its_answer() {
    let served = serve();
    let mut idle: Vec<_> = (0..3 * EXCHANGES_MAX).map(|_| served.connect()).collect();
    assert!(served.page().contains("page 1"));
    assert!(is_closed(&mut idle[0]), "the oldest one is replaced");
    // Each sends a part of a request, and the connections are full again.
    let mut slow: Vec<_> = (0..2 * EXCHANGES_MAX).map(|_| served.connect()).collect();
    slow.iter_mut().for_each(|stream| drop(stream.write_all(b"G")));
    assert!(served.page().contains("page 2"));
}

#[test]
fn clients_that_never_read_keep_no_request_from_its_answer() {
    let served = serve();
    let request = b"GET /metrics HTTP/1.1\r\n\r\n";
    let mut deaf: Vec<_> = (0..3 * EXCHANGES_MAX).map(|_| served.connect()).collect();
    deaf.iter_mut().for_each(|stream| drop(stream.write_all(request)));
    assert!(served.page().starts_with("HTTP/1.1 200 OK"));
    let pages = served.pages.load(Ordering::Relaxed);
    assert!(pages <= 50, "{pages} pages for 193 requests");
}

#[test]
fn viewers_learn_that_there_is_no_service_and_are_limited() {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let nowhere = vec![PathBuf::from("/nonexistent/socket")];
    let server = MetricsServer::without_metrics(address, HostNames::default(), nowhere);
    let server = server.unwrap();
    let address = server.address();
    let page = get(address, "/");
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("default-src 'none'"), "{page}");
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 404 "));
    let mut viewers: Vec<_> = (0..VIEWERS_MAX).map(|_| ask(address, "/updates")).collect();
    for viewer in &mut viewers {
        let mut told = String::new();
        while !told.contains("\ndata: {\"lost\":") {
            let mut bytes = [0; 4_096];
            let count = viewer.read(&mut bytes).unwrap();
            assert!(count > 0, "{told}");
            told.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    }
    assert!(get(address, "/updates").starts_with("HTTP/1.1 503 "));
    assert!(get(address, "/").starts_with("HTTP/1.1 200 "), "other requests have their place");
    drop(server);
    assert!(is_closed(&mut viewers[0]));
    let served = serve();
    assert!(get(served.address, "/").starts_with("HTTP/1.1 404 "), "there is no page here");
}

#[test]
fn the_server_ends_with_its_value_and_frees_the_address() {
    let served = serve();
    let address = served.address;
    let mut open = served.connect();
    drop(served);
    assert!(is_closed(&mut open));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_in_use_is_refused_in_one_sentence() {
    let used = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let poller = Poller::new().unwrap();
    let address = used.local_addr().unwrap();
    let config = MetricsConfig { listen: Some(address), ..MetricsConfig::default() };
    let refused = MetricsServer::listen(&config, Path::new(""), &poller);
    let error = refused.err().unwrap().to_string();
    assert!(error.starts_with(&format!("metrics cannot be served at {address}: ")), "{error}");
}
