//! Why memory is not moved: one variant per reason, with its sentence and its code.

use gpreempt_device::process::ProcessKey;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::statistics::memory;

use super::{CLAIMS_MAX, EVICTIONS_MAX};
use crate::service::processes::Named;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error(
        "{} is evicted already ({why}); restore it with `gpreempt restore {}`",
        Named(*.key), .key.pid
    )]
    Already { key: ProcessKey, why: String },
    #[error(
        "the GPU memory of {} moves at the moment; wait until `gpreempt ps` shows it evicted or \
         running",
        Named(*.0)
    )]
    Moving(ProcessKey),
    #[error("{} is not evicted", Named(*.0))]
    NotEvicted(ProcessKey),
    #[error("{} is evicted {why}; it returns when that is over", Named(*.key))]
    HeldOut { key: ProcessKey, why: String },
    #[error("{} uses {count} GPUs; only processes on one GPU can be evicted", Named(*.key))]
    SeveralGpus { key: ProcessKey, count: usize },
    #[error(
        "{} uses an AMD GPU, whose driver moves memory to the host by itself when it is short",
        Named(*.0)
    )]
    Amd(ProcessKey),
    #[error("the GPU of {} is not known yet; try again", Named(*.0))]
    NoGpu(ProcessKey),
    #[error("neither {} nor a descendant of it uses a GPU that gpreemptd controls", Named(*.0))]
    EmptyTree(ProcessKey),
    /// Found before anything was touched, with the reason.
    #[error("{0}")]
    Refused(String),
    /// The eviction was undone, with the reason.
    #[error("{} was not evicted: {why}", Named(*.key))]
    Failed { key: ProcessKey, why: String },
    #[error("process {0} has ended")]
    Ended(ProcessKey),
    #[error("{EVICTIONS_MAX} evictions of uid {0} are not over yet; restore some of them first")]
    TooManyEvictions(u32),
    #[error("{CLAIMS_MAX} processes of uid {0} claim GPU memory already; end some of them")]
    TooManyClaims(u32),

    #[error("gpreemptd controls no GPU")]
    NoDevice,
    #[error("there is no GPU {0}")]
    NoSuchDevice(u32),
    #[error("the memory of GPU {0} cannot be read, so no room can be made on it")]
    UnknownMemory(String),
    #[error(
        "{} do not fit into the GPU, which has {} (GPU {gpu})",
        memory(*.bytes / 1_024), memory(*.total / 1_024)
    )]
    TooLarge { bytes: u64, total: u64, gpu: String },
    #[error(
        "GPU {gpu} lacks {}: {} are needed and {} are free, and evictable processes with a \
         priority below {priority} have {}{except}; nothing was evicted",
        memory(.missing.div_ceil(1_024)), memory(*.bytes / 1_024), memory(*.free / 1_024),
        memory(*.evictable / 1_024)
    )]
    NoRoom {
        gpu: String,
        missing: u64,
        bytes: u64,
        free: u64,
        evictable: u64,
        priority: gpreempt_core::priority::Priority,
        /// Why others were not evicted.
        except: String,
    },
    #[error("the claim of process {0} was ended or replaced before there was room")]
    ClaimEnded(ProcessKey),
}

impl MemoryError {
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Already { .. } | Self::SeveralGpus { .. } | Self::Refused(_) => {
                RefusalCode::CannotEvict
            }
            Self::Amd(_) | Self::UnknownMemory(_) => RefusalCode::Unsupported,
            Self::Moving(_) | Self::HeldOut { .. } | Self::NoGpu(_) => RefusalCode::Busy,
            Self::NotEvicted(_) => RefusalCode::NotEvicted,
            Self::EmptyTree(_) | Self::NoDevice => RefusalCode::NotControlled,
            Self::Failed { .. } | Self::ClaimEnded(_) => RefusalCode::Failed,
            Self::Ended(_) => RefusalCode::NoSuchProcess,
            Self::TooManyEvictions(_) | Self::TooManyClaims(_) => RefusalCode::Limit,
            Self::NoSuchDevice(_) => RefusalCode::BadSetting,
            Self::TooLarge { .. } | Self::NoRoom { .. } => RefusalCode::NoRoom,
        }
    }
}
