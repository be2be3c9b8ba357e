//! Pointers from C: looked at before anything is done.
#![expect(unsafe_code, reason = "what C points at can only be believed")]

use std::ffi::{CStr, c_char};

use crate::code::Code;
use crate::failure::Failure;

/// Refuses what cannot be written to.
pub(super) fn check<T>(at: *mut T, name: &'static str) -> Result<(), Failure> {
    if at.is_null() || !at.is_aligned() { Err(bad_pointer(name)) } else { Ok(()) }
}

/// Writes one value.
///
/// # Safety
/// Unless it is refused, `at` points at room for a `T`.
pub(super) unsafe fn store<T>(at: *mut T, value: T, name: &'static str) -> Result<(), Failure> {
    check(at, name)?;
    // SAFETY: the write wants room for a `T` and an aligned address: promised, and checked.
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
        // SAFETY: below `capacity`, so inside of what the caller promised.
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
    // SAFETY: wants an initialised `T` at an aligned address: promised, and checked.
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
    values.try_reserve_exact(count).map_err(|_| Failure::from(Code::NoMemory))?;
    // SAFETY: wants `count` initialised values at an aligned address: promised, and checked.
    values.extend_from_slice(unsafe { std::slice::from_raw_parts(at, count) });
    Ok(values)
}

/// A text, copied; none for NULL.
///
/// # Safety
/// `at` is NULL or points at a text that ends with a zero.
pub(super) unsafe fn text(at: *const c_char) -> Option<Vec<u8>> {
    if at.is_null() {
        return None;
    }
    // SAFETY: wants a text that ends with a zero: promised.
    Some(unsafe { CStr::from_ptr(at) }.to_bytes().to_vec())
}

/// A thing that the library made before.
///
/// # Safety
/// Unless it is refused, `at` came from the library and has not been given back.
pub(super) unsafe fn borrow<'a, T>(at: *const T, name: &'static str) -> Result<&'a T, Failure> {
    check(at.cast_mut(), name)?;
    // SAFETY: wants a live `T` that nobody changes without asking: promised, and what the library
    // hands out is changed under locks only.
    Ok(unsafe { &*at })
}

fn bad_pointer(name: &'static str) -> Failure {
    Failure::new(Code::Argument, format!("{name} is NULL or not aligned"))
}
