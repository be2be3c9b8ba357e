//! The checkpoint calls of libcuda, which the evictor program loads when it needs them.
//!
//! They are in libcuda since driver 570. Each takes a pid and a block of arguments that may be
//! absent; what they return is a `CUresult`. Loading libcuda starts threads and opens the devices,
//! so no other program of gpreempt does it.
#![expect(unsafe_code, reason = "functions of a library that is loaded at run time")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::Duration;

use libloading::Library;

use super::CheckpointState;

/// Where the driver installs it, in the folders that the linker searches.
const LIBRARY: &str = "libcuda.so.1";

/// `CUDA_ERROR_INVALID_VALUE`: Restore answers it for a process that imported CUDA IPC memory.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_NOT_SUPPORTED`: MPS clients, and Checkpoint with managed memory.
pub(super) const NOT_SUPPORTED: c_int = 801;
/// `CUDA_ERROR_OUT_OF_MEMORY`
pub(super) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_OPERATING_SYSTEM`: also what a call answers whose process is killed.
pub(super) const OPERATING_SYSTEM: c_int = 304;
/// `CUDA_ERROR_NOT_READY`: Lock answers it when its time is over.
pub(super) const NOT_READY: c_int = 600;

/// `CUcheckpointLockArgs`
#[repr(C)]
#[derive(Debug, Default)]
struct LockArguments {
    timeout_ms: c_uint,
    reserved_0: c_uint,
    reserved_1: [u64; 7],
}

type Call = unsafe extern "C" fn(c_int, *mut c_void) -> c_int;

/// The library, which is never unloaded: its threads run until the program ends.
#[derive(Debug)]
pub(super) struct LibCuda {
    _library: ManuallyDrop<Library>,
    get_state: unsafe extern "C" fn(c_int, *mut c_int) -> c_int,
    lock: Call,
    checkpoint: Call,
    restore: Call,
    unlock: Call,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

/// What a call answered, unless it is success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver answered error {code} ({name})")]
pub(super) struct CudaError {
    pub(super) code: c_int,
    name: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(
        "{LIBRARY} cannot be loaded ({0}); it comes with NVIDIA's driver. In a container, add the \
         capability `compute` to NVIDIA_DRIVER_CAPABILITIES"
    )]
    Absent(libloading::Error),
    #[error(
        "{LIBRARY} of this driver cannot move the memory of processes ({0}); install driver 570 \
         or later"
    )]
    TooOld(libloading::Error),
    #[error("{LIBRARY} cannot be initialised: {0}")]
    Init(CudaError),
}

impl LibCuda {
    pub(super) fn load() -> Result<Self, LoadError> {
        Self::load_from(LIBRARY)
    }

    fn load_from(path: &str) -> Result<Self, LoadError> {
        // SAFETY: requires that its initialisers do no harm; libcuda's make no change.
        let library = unsafe { Library::new(path) }.map_err(LoadError::Absent)?;
        // SAFETY: `symbol` requires that it has the type of the variable, as in cuda.h.
        let init: unsafe extern "C" fn(c_uint) -> c_int = unsafe { symbol(&library, b"cuInit\0") }?;
        // SAFETY: the same.
        let get_state = unsafe { symbol(&library, b"cuCheckpointProcessGetState\0") }?;
        // SAFETY: the same.
        let lock = unsafe { symbol(&library, b"cuCheckpointProcessLock\0") }?;
        // SAFETY: the same.
        let checkpoint = unsafe { symbol(&library, b"cuCheckpointProcessCheckpoint\0") }?;
        // SAFETY: the same.
        let restore = unsafe { symbol(&library, b"cuCheckpointProcessRestore\0") }?;
        // SAFETY: the same.
        let unlock = unsafe { symbol(&library, b"cuCheckpointProcessUnlock\0") }?;
        // SAFETY: the same.
        let error_name = unsafe { symbol(&library, b"cuGetErrorName\0") }?;
        let _library = ManuallyDrop::new(library);
        let cuda = Self { _library, get_state, lock, checkpoint, restore, unlock, error_name };
        // SAFETY: takes a number that has to be 0.
        cuda.check(unsafe { init(0) }).map_err(LoadError::Init)?;
        Ok(cuda)
    }

    pub(super) fn state(&self, pid: u32) -> Result<CheckpointState, CudaError> {
        let mut state = 0;
        // SAFETY: stores one number.
        self.check(unsafe { (self.get_state)(number(pid), &raw mut state) })?;
        Ok(match state {
            0 => CheckpointState::Running,
            1 => CheckpointState::Locked,
            2 => CheckpointState::Checkpointed,
            _ => CheckpointState::Failed,
        })
    }

    /// Without a limit it waits for as long as a process is stopped.
    pub(super) fn lock(&self, pid: u32, limit: Duration) -> Result<(), CudaError> {
        // 0 is no limit.
        let timeout_ms = c_uint::try_from(limit.as_millis()).unwrap_or(c_uint::MAX).max(1);
        let mut arguments = LockArguments { timeout_ms, ..LockArguments::default() };
        // SAFETY: reads the block of this call, which lives until it returns.
        self.check(unsafe { (self.lock)(number(pid), (&raw mut arguments).cast()) })
    }

    pub(super) fn checkpoint(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: the block of arguments may be absent.
        self.check(unsafe { (self.checkpoint)(number(pid), ptr::null_mut()) })
    }

    pub(super) fn restore(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: the block of arguments may be absent.
        self.check(unsafe { (self.restore)(number(pid), ptr::null_mut()) })
    }

    pub(super) fn unlock(&self, pid: u32) -> Result<(), CudaError> {
        // SAFETY: the block of arguments may be absent.
        self.check(unsafe { (self.unlock)(number(pid), ptr::null_mut()) })
    }

    fn check(&self, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: stores the address of a string that lives as long as the library, or null.
        let known = unsafe { (self.error_name)(code, &raw mut name) };
        let name = if known != 0 || name.is_null() {
            "unknown".to_owned()
        } else {
            // SAFETY: a string of the library, with a zero at its end.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(CudaError { code, name })
    }
}

/// A function of the library.
///
/// # Safety
/// `T` is the type of the function of that name, which ends with a zero. It must not be called
/// after the library was unloaded.
unsafe fn symbol<T: Copy>(library: &Library, name: &[u8]) -> Result<T, LoadError> {
    // SAFETY: the caller vouches for the type.
    let found = unsafe { library.get::<T>(name) }.map_err(LoadError::TooOld)?;
    Ok(*found)
}

/// Pids are below 2^22.
fn number(pid: u32) -> c_int {
    c_int::try_from(pid).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A library with one process, 7, and errors for all others.
    const FAKE: &str = r#"
static int state;
int cuInit(unsigned flags) { return flags; }
int cuGetErrorName(int code, const char **name) {
    *name = code == 600 ? "CUDA_ERROR_NOT_READY" : 0;
    return 0;
}
int cuCheckpointProcessGetState(int pid, int *into) { *into = state; return pid == 7 ? 0 : 1; }
int cuCheckpointProcessLock(int pid, unsigned *args) {
    if (args[0] < 100) return 600;
    state = 1;
    return args[1] || args[2] || args[15];
}
int cuCheckpointProcessCheckpoint(int pid, void *args) { state = 2; return args != 0; }
int cuCheckpointProcessRestore(int pid, void *args) { state = 1; return args != 0; }
int cuCheckpointProcessUnlock(int pid, void *args) { state = 0; return args != 0; }
"#;

    fn compile(name: &str, source: &str) -> Option<(gpreempt_stage::WorkFolder, String)> {
        let folder = gpreempt_stage::WorkFolder::new(name).unwrap();
        let (text, library) = (folder.path("cuda.c"), folder.path("cuda.so"));
        std::fs::write(&text, source).unwrap();
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &text]).status();
        let Ok(status) = compiled else {
            println!("SKIPPED: there is no C compiler (cc)");
            return None;
        };
        assert!(status.success());
        Some((folder, library.to_str().unwrap().to_owned()))
    }

    #[test]
    fn the_calls_have_the_arguments_of_the_header() {
        assert_eq!(size_of::<LockArguments>(), 64);
        let Some((_folder, library)) = compile("libcuda", FAKE) else { return };
        let cuda = LibCuda::load_from(&library).unwrap();
        assert_eq!(cuda.state(7), Ok(CheckpointState::Running));
        let late = cuda.lock(7, Duration::ZERO).unwrap_err();
        assert_eq!(late.code, NOT_READY, "0 would be no limit");
        assert!(late.to_string().contains("600 (CUDA_ERROR_NOT_READY)"), "{late}");
        cuda.lock(7, Duration::from_secs(2)).unwrap();
        assert_eq!(cuda.state(7), Ok(CheckpointState::Locked));
        cuda.checkpoint(7).unwrap();
        assert_eq!(cuda.state(7), Ok(CheckpointState::Checkpointed));
        cuda.restore(7).unwrap();
        cuda.unlock(7).unwrap();
        assert_eq!(cuda.state(8).unwrap_err().to_string(), "the driver answered error 1 (unknown)");
    }

    #[test]
    fn a_missing_or_old_library_is_one_sentence() {
        let error = LibCuda::load_from("/nonexistent/libcuda.so.1").unwrap_err().to_string();
        assert!(error.contains("comes with NVIDIA's driver"), "{error}");
        let old = "int cuInit(unsigned flags) { return 0; }";
        let Some((_folder, library)) = compile("libcuda_old", old) else { return };
        let error = LibCuda::load_from(&library).unwrap_err().to_string();
        assert!(error.contains("driver 570"), "{error}");
    }
}
