//! The functions of libcuda.so.1 that are used, found when the program runs, and what the library
//! says about itself.
//!
//! The signatures are those of cuda.h (CUDA 11.4 and later). The names carry the version suffixes
//! that cuda.h hides behind macros; the library keeps old names for ever.
#![expect(unsafe_code, reason = "functions of another library have no safe signatures")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::rc::Rc;

use libloading::Library;

/// The name that the driver installs.
const LIBRARY: &str = "libcuda.so.1";

/// A pointer to something that only the library knows the inside of.
pub(crate) type Opaque = *mut c_void;

macro_rules! symbols {
    ($($field:ident = $name:literal ($($argument:ty),* $(,)?);)*) => {
        /// The function table. All functions answer with a `CUresult`.
        pub(crate) struct Symbols {
            // Never closed: the library has threads of its own that would lose their code.
            _library: ManuallyDrop<Library>,
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Symbols {
            /// Loads the library and finds every function.
            pub(super) fn load() -> Result<Self, libloading::Error> {
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
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_string = "cuGetErrorString" (c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    context_retain = "cuDevicePrimaryCtxRetain" (*mut Opaque, c_int);
    context_release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    context_set_current = "cuCtxSetCurrent" (Opaque);
    module_load = "cuModuleLoadDataEx" (
        *mut Opaque, *const c_void, c_uint, *mut c_int, *mut *mut c_void,
    );
    module_unload = "cuModuleUnload" (Opaque);
    module_function = "cuModuleGetFunction" (*mut Opaque, Opaque, *const c_char);
    function_set_attribute = "cuFuncSetAttribute" (Opaque, c_int, c_int);
    function_attribute = "cuFuncGetAttribute" (*mut c_int, c_int, Opaque);
    occupancy = "cuOccupancyMaxActiveBlocksPerMultiprocessor" (*mut c_int, Opaque, c_int, usize);
    launch = "cuLaunchKernel" (
        Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void,
        *mut *mut c_void,
    );
    launch_cooperative = "cuLaunchCooperativeKernel" (
        Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut *mut c_void,
    );
    stream_create = "cuStreamCreate" (*mut Opaque, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (Opaque);
    stream_synchronize = "cuStreamSynchronize" (Opaque);
    stream_begin_capture = "cuStreamBeginCapture_v2" (Opaque, c_int);
    stream_end_capture = "cuStreamEndCapture" (Opaque, *mut Opaque);
    graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Opaque, Opaque, u64);
    graph_launch = "cuGraphLaunch" (Opaque, Opaque);
    graph_destroy = "cuGraphDestroy" (Opaque);
    graph_exec_destroy = "cuGraphExecDestroy" (Opaque);
    event_create = "cuEventCreate" (*mut Opaque, c_uint);
    event_destroy = "cuEventDestroy_v2" (Opaque);
    event_record = "cuEventRecord" (Opaque, Opaque);
    event_query = "cuEventQuery" (Opaque);
    event_elapsed = "cuEventElapsedTime" (*mut f32, Opaque, Opaque);
    memory_allocate = "cuMemAlloc_v2" (*mut u64, usize);
    memory_free = "cuMemFree_v2" (u64);
    memory_fill = "cuMemsetD32_v2" (u64, c_uint, usize);
    memory_read = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Opaque);
    host_allocate = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    host_device_address = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
}

/// The library, initialised.
pub(super) struct Driver {
    pub(super) symbols: Symbols,
}

impl Driver {
    pub(super) fn open() -> Result<Rc<Self>, Missing> {
        let symbols = Symbols::load().map_err(|error| {
            // The reason, such as the name of the missing file, is in the source.
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            Missing::new(&reason.unwrap_or_else(|| format!("{LIBRARY}: {error}")))
        })?;
        let driver = Self { symbols };
        // SAFETY: cuInit only wants flags that are zero.
        let code = unsafe { (driver.symbols.init)(0) };
        driver.check("cuInit", code).map_err(|error| Missing::new(&error))?;
        Ok(Rc::new(driver))
    }

    /// What a call's answer means.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text: *const c_char = ptr::null();
        // SAFETY: cuGetErrorString stores a pointer to a constant, or null for an unknown code.
        let known = unsafe { (self.symbols.error_string)(code, &raw mut text) };
        let text = if known == 0 && !text.is_null() {
            // SAFETY: the library's messages are constants that end with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            String::from("unknown error")
        };
        Err(CudaError::new(call, code, text))
    }

    /// A call that stores one number.
    pub(super) fn number(
        &self,
        call: &'static str,
        function: impl FnOnce(&Symbols, *mut c_int) -> c_int,
    ) -> Result<c_int, CudaError> {
        let mut number = 0;
        self.check(call, function(&self.symbols, &raw mut number))?;
        Ok(number)
    }

    /// The newest CUDA version it knows: 13000 is 13.0.
    pub(super) fn version(&self) -> Result<c_int, CudaError> {
        // SAFETY: stores one int where the pointer says.
        self.number("cuDriverGetVersion", |all, at| unsafe { (all.driver_version)(at) })
    }

    pub(super) fn device_count(&self) -> Result<c_int, CudaError> {
        // SAFETY: stores one int where the pointer says.
        self.number("cuDeviceGetCount", |all, at| unsafe { (all.device_count)(at) })
    }

    pub(super) fn device(&self, index: c_int) -> Result<c_int, CudaError> {
        // SAFETY: stores one int where the pointer says; a wrong index is answered with an error.
        self.number("cuDeviceGet", |all, at| unsafe { (all.device)(at, index) })
    }

    pub(super) fn attribute(&self, device: c_int, what: c_int) -> Result<c_int, CudaError> {
        // SAFETY: stores one int where the pointer says; wrong numbers are answered with an error.
        self.number("cuDeviceGetAttribute", |all, at| unsafe {
            (all.device_attribute)(at, what, device)
        })
    }

    pub(super) fn name(&self, device: c_int) -> Result<String, CudaError> {
        let mut name = [0u8; 256];
        // SAFETY: writes at most 255 bytes and a zero; the array has room for 256.
        let code = unsafe { (self.symbols.device_name)(name.as_mut_ptr().cast(), 255, device) };
        self.check("cuDeviceGetName", code)?;
        let text = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A call that the library refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call} failed: {text} (error {code})")]
pub(crate) struct CudaError {
    call: &'static str,
    code: i32,
    text: String,
}

/// There is no library, or no device behind it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no CUDA device to run on: {0}")]
pub(crate) struct Missing(String);

impl CudaError {
    pub(super) fn new(call: &'static str, code: i32, text: String) -> Self {
        Self { call, code, text }
    }

    /// The same with the log of the PTX compiler.
    pub(super) fn with_log(mut self, log: &str) -> Self {
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            self.text = format!("{} ({})", self.text, lines.join("; "));
        }
        self
    }
}

impl Missing {
    pub(super) fn new(reason: &dyn fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_with_the_log_of_the_compiler() {
        let error =
            CudaError::new("cuModuleLoadDataEx", 218, "a PTX JIT compilation failed".into());
        assert_eq!(
            error.clone().with_log("\n").to_string(),
            "cuModuleLoadDataEx failed: a PTX JIT compilation failed (error 218)"
        );
        assert_eq!(
            error.with_log("line 3: bad\n  line 4: worse\n").to_string(),
            "cuModuleLoadDataEx failed: a PTX JIT compilation failed \
             (line 3: bad; line 4: worse) (error 218)"
        );
    }
}
