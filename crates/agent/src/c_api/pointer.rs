//! Pointers from C: checked for NULL and alignment before they are used.
#![expect(unsafe_code, reason = "the memory behind a pointer from C cannot be checked")]

use std::ffi::{c_char, c_int};

use crate::error::{ErrorCode, Failure, fail};
use crate::ffi_guard::guarded;

/// Refuses NULL and misaligned pointers.
pub(super) fn check<T>(at: *mut T, name: &'static str) -> Result<(), Failure> {
    if at.is_null() || !at.is_aligned() {
        return fail(ErrorCode::Argument, format!("{name} is NULL or not aligned"));
    }
    Ok(())
}

/// The body of a C function that writes one result. The pointer is checked before the work is done.
///
/// # Safety
/// Unless it is refused, `at` points at room for a `T`.
pub(super) unsafe fn fill<T>(
    at: *mut T,
    name: &'static str,
    value: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    guarded(|| {
        check(at, name)?;
        let value = value()?;
        // SAFETY: promised by the caller.
        unsafe { store(at, value, name) }
    })
}

/// Writes one value.
///
/// # Safety
/// Unless it is refused, `at` points at room for a `T`.
pub(super) unsafe fn store<T>(at: *mut T, value: T, name: &'static str) -> Result<(), Failure> {
    check(at, name)?;
    // SAFETY: the write requires room for a `T` (promised) and an aligned address (checked).
    unsafe { at.write(value) };
    Ok(())
}

/// Writes as many values as there is room for. `at` may be NULL if there is room for none.
///
/// # Safety
/// Unless it is refused, `at` points at room for `capacity` values.
pub(super) unsafe fn store_all<T: Copy>(
    at: *mut T,
    capacity: usize,
    values: &[T],
    name: &'static str,
) -> Result<(), Failure> {
    if capacity > 0 {
        check(at, name)?;
    }
    for (index, value) in values.iter().take(capacity).enumerate() {
        // SAFETY: below `capacity`, so inside the room that the caller promised.
        let place = unsafe { at.add(index) };
        // SAFETY: room for a `T` at an aligned address, as above.
        unsafe { place.write(*value) };
    }
    Ok(())
}

/// One value, copied.
///
/// # Safety
/// Unless it is refused, `at` points at a `T`.
pub(super) unsafe fn load<T: Copy>(at: *const T, name: &'static str) -> Result<T, Failure> {
    check(at.cast_mut(), name)?;
    // SAFETY: requires an initialised `T` (promised) at an aligned address (checked).
    Ok(unsafe { at.read() })
}

/// Several values, copied; at most `most`.
///
/// # Safety
/// Unless it is refused, `at` points at `count` values.
pub(super) unsafe fn load_all<T: Copy>(
    at: *const T,
    count: usize,
    most: usize,
    name: &'static str,
) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check(at.cast_mut(), name)?;
    if count > most {
        return fail(ErrorCode::Limit, format!("{name} has {count} elements; at most {most}"));
    }
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Failure::from(ErrorCode::NoMemory))?;
    // SAFETY: requires `count` initialised values (promised) at an aligned address (checked).
    values.extend_from_slice(unsafe { std::slice::from_raw_parts(at, count) });
    Ok(values)
}

/// The longest path that the kernel accepts, with its terminating zero.
const TEXT_BYTES_MAX: usize = 4096;

/// A path, copied; `None` for NULL. No byte after the longest one is read, so a string without an
/// end is refused.
///
/// # Safety
/// `at` is NULL, or points at a string that ends with a zero or has [`TEXT_BYTES_MAX`] bytes.
pub(super) unsafe fn text(
    at: *const c_char,
    name: &'static str,
) -> Result<Option<Vec<u8>>, Failure> {
    if at.is_null() {
        return Ok(None);
    }
    let mut text = Vec::new();
    for index in 0..TEXT_BYTES_MAX {
        // SAFETY: no zero was before this byte, so it is inside of the string.
        let place = unsafe { at.add(index) };
        // SAFETY: as above.
        let [byte] = unsafe { place.read() }.to_ne_bytes();
        if byte == 0 {
            return Ok(Some(text));
        }
        text.push(byte);
    }
    fail(
        ErrorCode::Argument,
        format!("{name} is longer than {TEXT_BYTES_MAX} bytes, or has no end"),
    )
}
