//! What the daemon and `top` cost while they watch 32 queues.

use std::path::Path;
use std::time::Duration;

use gpreempt_stage::EmulatorKind;
use serde_json::{Value, json};

use super::setup::Setup;
use super::terminal::Terminal;
use super::usage::{Meter, resident_kib};

/// How long each of them is watched.
const WATCH: Duration = Duration::from_secs(20);
/// What happens when everybody starts does not count.
const WARM_UP: Duration = Duration::from_secs(3);

/// Everything that was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    queues: usize,
    interval_us: u64,
    preempts_per_s: f64,
    pub(super) daemon_percent: f64,
    pub(super) daemon_kib: u64,
    emulator_percent: f64,
    pub(super) top_percent: f64,
    top_kib: u64,
}

impl Cost {
    /// Measures a mixed load: two processes that never have enough, two that are more important
    /// and want something every half second, and four with seven queues each that do a little.
    pub(super) fn measure(programs: &Path) -> anyhow::Result<Self> {
        let mut setup =
            Setup::start(EmulatorKind::Gpu, programs, "cost", "--model mi300x --compute-units 4")?;
        setup.loads(2, 2, "be --kernel-us 4000 --depth 2 --report-ms 60000")?;
        setup.loads(2, 7, "lc --kernels 4 --every-us 500000")?;
        setup.loads(4, 2, "light --queues 7 --every-ms 100 --kernel-us 200")?;
        let queues = 32;
        setup.until_queues(queues)?;
        std::thread::sleep(WARM_UP);
        let before = setup.snapshot()?;
        let meters = [Meter::start(setup.daemon())?, Meter::start(setup.emulator())?];
        std::thread::sleep(WATCH);
        let [daemon_percent, emulator_percent] = meters.map(|meter| meter.percent());
        let (daemon_percent, emulator_percent) = (daemon_percent?, emulator_percent?);
        let after = setup.snapshot()?;
        let daemon_kib = resident_kib(setup.daemon())?;
        let preempts = |snapshot: &gpreempt_wire::state::Snapshot| {
            snapshot.devices.iter().map(|device| device.preempts).sum::<u64>()
        };
        let preempts = preempts(&after).saturating_sub(preempts(&before));
        let preempts = u32::try_from(preempts).map_or(f64::MAX, f64::from);
        let elapsed = Duration::from_nanos(after.now_ns.saturating_sub(before.now_ns));
        let mut top = setup.command("gpreempt")?;
        top.arg("top");
        let top = Terminal::open(top)?;
        std::thread::sleep(WARM_UP);
        let meter = Meter::start(top.pid())?;
        std::thread::sleep(WATCH);
        let (top_percent, top_kib) = (meter.percent()?, resident_kib(top.pid())?);
        drop(top);
        super::complain(&setup.end()?)?;
        Ok(Self {
            queues,
            interval_us: after.interval_us,
            preempts_per_s: preempts / elapsed.as_secs_f64(),
            daemon_percent,
            daemon_kib,
            emulator_percent,
            top_percent,
            top_kib,
        })
    }

    /// For programs.
    pub(super) fn to_json(self) -> Value {
        json!({
            "queues": self.queues,
            "interval_us": self.interval_us,
            "seconds": WATCH.as_secs(),
            "preempts_per_s": super::round(self.preempts_per_s),
            "daemon_percent_of_a_core": super::round(self.daemon_percent),
            "daemon_resident_kib": self.daemon_kib,
            "emulator_percent_of_a_core": super::round(self.emulator_percent),
            "top_percent_of_a_core": super::round(self.top_percent),
            "top_resident_kib": self.top_kib,
        })
    }
}
