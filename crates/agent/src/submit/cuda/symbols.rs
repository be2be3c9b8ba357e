//! The functions of libcuda.so.1 that are used, found when the first queue on CUDA is made.
//!
//! The names carry the version suffixes that cuda.h hides behind macros; the library keeps old
//! names for ever.
#![expect(unsafe_code, reason = "functions of another library have no safe signatures")]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::Library;

use crate::code::Code;
use crate::failure::Failure;

/// The name that the driver installs.
const LIBRARY: &str = "libcuda.so.1";

/// Something that only the driver knows the inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Handle(pub(super) *mut c_void);

impl Handle {
    pub(super) const NULL: Self = Self(std::ptr::null_mut());
}

// SAFETY: the driver's handles may be used from any thread, as long as their context is current
// there; a handle by itself is a number.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

macro_rules! symbols {
    ($($field:ident = $name:literal ($($argument:ty),* $(,)?);)*) => {
        /// The function table. All functions answer with a `CUresult`.
        #[derive(Debug)]
        pub(super) struct Symbols {
            // Never closed: the library has threads of its own that would lose their code.
            _library: ManuallyDrop<Library>,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Symbols {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: loading runs the library's initialisers; libcuda's are made for that.
                let library = ManuallyDrop::new(unsafe { Library::new(LIBRARY) }?);
                $(
                    // SAFETY: the signature is the one that cuda.h declares for this name.
                    let $field = *unsafe { library.get(concat!($name, "\0").as_bytes()) }?;
                )*
                Ok(Self { _library: library, $($field,)* })
            }
        }
    };
}

symbols! {
    context_current = "cuCtxGetCurrent" (*mut Handle);
    context_push = "cuCtxPushCurrent_v2" (Handle);
    context_pop = "cuCtxPopCurrent_v2" (*mut Handle);
    priority_range = "cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    stream_create = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    stream_query = "cuStreamQuery" (Handle);
    stream_destroy = "cuStreamDestroy_v2" (Handle);
    event_create = "cuEventCreate" (*mut Handle, c_uint);
    event_record = "cuEventRecord" (Handle, Handle);
    event_query = "cuEventQuery" (Handle);
    event_destroy = "cuEventDestroy_v2" (Handle);
    launch = "cuLaunchKernel" (
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void,
    );
}

impl Symbols {
    /// The functions, if there is a driver. One that is installed later is found later.
    pub(super) fn get() -> Result<&'static Self, Failure> {
        static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
        if let Some(symbols) = SYMBOLS.get() {
            return Ok(symbols);
        }
        let symbols = Self::load().map_err(|error| {
            Failure::new(Code::NoDevice, format!("CUDA cannot be used: {error}"))
        })?;
        Ok(SYMBOLS.get_or_init(|| symbols))
    }
}
