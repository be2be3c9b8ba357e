//! Pointers from C: checked for NULL and alignment before they are used.
#![expect(unsafe_code, reason = "the memory behind a pointer from C cannot be checked")]

use std::ffi::{CStr, c_char, c_int};

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

/// Several values, copied.
///
/// # Safety
/// Unless it is refused, `at` points at `count` values.
pub(super) unsafe fn load_all<T: Copy>(
    at: *const T,
    count: usize,
    name: &'static str,
) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    check(at.cast_mut(), name)?;
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Failure::from(ErrorCode::NoMemory))?;
    // SAFETY: requires `count` initialised values (promised) at an aligned address (checked).
    values.extend_from_slice(unsafe { std::slice::from_raw_parts(at, count) });
    Ok(values)
}

/// A string, copied; `None` for NULL.
///
/// # Safety
/// `at` is NULL or points at a string that ends with a zero.
pub(super) unsafe fn text(at: *const c_char) -> Option<Vec<u8>> {
    if at.is_null() {
        return None;
    }
    // SAFETY: requires a string that ends with a zero: promised.
    Some(unsafe { CStr::from_ptr(at) }.to_bytes().to_vec())
}

/// An object that the library created.
///
/// # Safety
/// Unless it is refused, `at` came from the library and has not been destroyed.
pub(super) unsafe fn borrow<'a, T>(at: *const T, name: &'static str) -> Result<&'a T, Failure> {
    check(at.cast_mut(), name)?;
    // SAFETY: requires a live `T` (promised) without unsynchronised writes; the library changes its
    // objects under locks only.
    Ok(unsafe { &*at })
}
