//! C structures and numbers of a driver's header, declared once together with what the header must
//! say about them. The tables of KFD and those of NVIDIA's driver in `device` are made with it.
//!
//! [`blocks!`](crate::blocks) defines structs, asserts their layout at compile time and lists them.
//! The tests `kfd_headers.rs` and `abi_headers.rs` of `device` compile the [claims](Layout::claims)
//! with the drivers' headers.

/// A block of memory that a driver reads and writes.
pub trait Block {
    /// How versions of the driver are told apart.
    type Versions: ?Sized + 'static;
    const LAYOUT: Layout<Self::Versions>;
}

/// What the header must say about a block.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout<V: ?Sized + 'static> {
    pub c_type: &'static str,
    pub size: usize,
    /// Every field except padding.
    pub fields: &'static [Field],
    /// The versions whose header says so.
    pub versions: &'static V,
}

/// What the header must say about a field of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in C; with dots for a field of a field.
    pub c_name: &'static str,
    pub offset: usize,
    pub size: usize,
}

/// What the header must say about a number.
#[derive(Debug, PartialEq, Eq)]
pub struct Number<V: ?Sized + 'static> {
    /// A macro, an enumerator, or an expression of several.
    pub c_expression: &'static str,
    pub value: u64,
    pub versions: &'static V,
}

impl<V: ?Sized> Layout<V> {
    /// The size, and the place and size of each field, as conditions in C.
    pub fn claims(&self) -> Vec<String> {
        let c_type = self.c_type;
        let mut claims = vec![format!("sizeof({c_type}) == {}", self.size)];
        for Field { c_name, offset, size } in self.fields {
            claims.push(format!("offsetof({c_type}, {c_name}) == {offset}"));
            claims.push(format!("sizeof((({c_type} *)0)->{c_name}) == {size}"));
        }
        claims
    }
}

impl<V: ?Sized> Number<V> {
    pub fn claim(&self) -> String {
        format!("({}) == {}ULL", self.c_expression, self.value)
    }
}

// Derived, they would require the same of `V`.
impl<V: ?Sized> Clone for Layout<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Layout<V> {}

impl<V: ?Sized> Clone for Number<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: ?Sized> Copy for Number<V> {}

/// The size of the field that `_field` returns.
pub const fn field_size<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Defines the blocks of a file and lists them in `LAYOUTS`. A field `name: type = "name in C" at
/// offset` must be in the header at that offset; a field `name: type` is padding. The first line
/// names the type that tells versions apart, and what all blocks derive.
#[macro_export]
macro_rules! blocks {
    (
        for $versions_type:ty, derive $derived:tt;
        $(
            $(#[$attribute:meta])*
            $shown:vis struct $block:ident = $c_type:literal in $versions:expr, $size:literal bytes
            {
                $(
                    $(#[$field_attribute:meta])*
                    $seen:vis $field:ident: $type:ty $(= $c_name:literal at $offset:literal)?
                ),+ $(,)?
            }
        )+
    ) => {
        pub const LAYOUTS: &[$crate::layout::Layout<$versions_type>] =
            &[$(<$block as $crate::layout::Block>::LAYOUT),+];
        $(
            $(#[$attribute])*
            #[derive $derived]
            #[derive(zerocopy::FromBytes, zerocopy::IntoBytes)]
            #[derive(zerocopy::Immutable, zerocopy::KnownLayout)]
            #[repr(C)]
            $shown struct $block {
                $($(#[$field_attribute])* $seen $field: $type,)+
            }

            const _: () = assert!(size_of::<$block>() == $size);
            $($(const _: () = assert!(core::mem::offset_of!($block, $field) == $offset);)?)+

            impl $crate::layout::Block for $block {
                type Versions = $versions_type;
                const LAYOUT: $crate::layout::Layout<$versions_type> = $crate::layout::Layout {
                    c_type: $c_type,
                    size: $size,
                    fields: &[$($($crate::layout::Field {
                        c_name: $c_name,
                        offset: $offset,
                        size: $crate::layout::field_size(|block: &$block| &block.$field),
                    },)?)+],
                    versions: &$versions,
                };
            }
        )+
    };
}
