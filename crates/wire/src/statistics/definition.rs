//! What a definition of a statistic consists of, and the macro that reads the definitions.

/// The definition of one statistic of a `T`.
#[derive(Debug)]
pub struct Statistic<T> {
    name: &'static str,
    help: &'static str,
    is_field: bool,
    /// Reads the value.
    pub read: fn(&T) -> Value,
    /// How `/metrics` shows it.
    pub metric: Option<Metric>,
    /// Its column in `gpreempt ps`.
    pub ps: Option<Column>,
    /// Its column in `gpreempt top`.
    pub top: Option<Column>,
}

/// How `/metrics` shows a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name; that of a counter ends in `_total`.
    pub name: &'static str,
    /// What Prometheus takes it for.
    pub kind: MetricKind,
    /// How the values of several processes that share a line become one.
    pub combine: Combine,
}

/// What Prometheus takes a metric for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the daemon runs.
    Counter,
    /// It may fall.
    Gauge,
    /// The counts of a [`Distribution`](super::Distribution), which only grow.
    Histogram,
}

impl MetricKind {
    /// The name in Prometheus' text format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// How the values of several processes that share a line become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// They are added.
    Sum,
    /// The greatest one is shown.
    Longest,
    /// They are not shown.
    Omit,
}

/// A column of a table in the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Columns are shown in ascending order of their positions.
    pub position: u8,
    /// The head of the column.
    pub title: &'static str,
    /// Characters that the column takes in `top`.
    pub width: u16,
    /// `top` omits the columns with the highest ranks first when the terminal is too narrow.
    pub rank: u8,
    /// Whether `ps` omits the column when no process has a value for it.
    pub if_known: bool,
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A count, an identifier or a text.
    None,
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Units of 1024 bytes.
    Kibibytes,
    /// A part from 0 to 1.
    Ratio,
    /// Per cent, shown as a ratio in metrics.
    Percent,
    /// Events per second.
    PerSecond,
}

/// The value of a statistic.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// There is none at the moment.
    Absent,
    /// A whole number, in the unit of the statistic.
    Count(u64),
    /// Any number.
    Real(f64),
    /// A text.
    Text(String),
    /// Counts of durations.
    Durations(super::Distribution),
}

impl<T> Statistic<T> {
    /// A statistic that is a field: its name, and its doc comment as description.
    pub(super) const fn new(name: &'static str, help: &'static str, read: fn(&T) -> Value) -> Self {
        Self { name, help, is_field: true, read, metric: None, ps: None, top: None }
    }

    /// A statistic that is derived from fields and has no JSON name.
    pub(super) const fn computed(
        name: &'static str,
        help: &'static str,
        read: fn(&T) -> Value,
    ) -> Self {
        Self { is_field: false, ..Self::new(name, help, read) }
    }

    pub(super) const fn metric(self, name: &'static str) -> Self {
        let kind = match name.as_bytes() {
            [.., b'_', b't', b'o', b't', b'a', b'l'] => MetricKind::Counter,
            _ => MetricKind::Gauge,
        };
        Self { metric: Some(Metric { name, kind, combine: Combine::Sum }), ..self }
    }

    pub(super) const fn histogram(self, name: &'static str) -> Self {
        let (kind, combine) = (MetricKind::Histogram, Combine::Omit);
        Self { metric: Some(Metric { name, kind, combine }), ..self }
    }

    pub(super) const fn longest(self) -> Self {
        self.combine(Combine::Longest)
    }

    pub(super) const fn single(self) -> Self {
        self.combine(Combine::Omit)
    }

    const fn combine(self, combine: Combine) -> Self {
        match self.metric {
            Some(metric) => Self { metric: Some(Metric { combine, ..metric }), ..self },
            None => self,
        }
    }

    pub(super) const fn ps(self, position: u8, title: &'static str) -> Self {
        let column = Column { position, title, width: 0, rank: 0, if_known: false };
        Self { ps: Some(column), ..self }
    }

    pub(super) const fn if_known(self) -> Self {
        match self.ps {
            Some(column) => Self { ps: Some(Column { if_known: true, ..column }), ..self },
            None => self,
        }
    }

    pub(super) const fn top(self, position: u8, title: &'static str, width: u16, rank: u8) -> Self {
        Self { top: Some(Column { position, title, width, rank, if_known: false }), ..self }
    }

    pub(super) const fn read_by(self, read: fn(&T) -> Value) -> Self {
        Self { read, ..self }
    }

    /// The JSON name, which ends with the unit.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The description: one or two sentences.
    pub fn help(&self) -> &'static str {
        self.help.trim_start()
    }

    /// Whether it is a field of the JSON.
    pub const fn is_field(&self) -> bool {
        self.is_field
    }

    /// The unit, which the name tells.
    pub fn unit(&self) -> Unit {
        let unit = |part: &str| match part {
            "ns" => Some(Unit::Nanoseconds),
            "us" => Some(Unit::Microseconds),
            "ms" => Some(Unit::Milliseconds),
            "kib" => Some(Unit::Kibibytes),
            "share" => Some(Unit::Ratio),
            "percent" => Some(Unit::Percent),
            "per" => Some(Unit::PerSecond),
            _ => None,
        };
        self.name.split('_').find_map(unit).unwrap_or(Unit::None)
    }
}

/// A field that can be read as a value.
pub(super) trait ReadValue {
    /// The value. Structures in a snapshot have statistics of their own and no value.
    fn value(&self) -> Value {
        Value::Absent
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl ReadValue for $type {
            fn value(&self) -> Value {
                Value::Count(u64::from(*self))
            }
        })*
    };
}

numbers! { bool u8 u16 u32 u64 }

impl ReadValue for f64 {
    fn value(&self) -> Value {
        Value::Real(*self)
    }
}

impl ReadValue for String {
    fn value(&self) -> Value {
        Value::Text(self.clone())
    }
}

impl<T: ReadValue> ReadValue for Option<T> {
    fn value(&self) -> Value {
        self.as_ref().map_or(Value::Absent, T::value)
    }
}

/// The value of a list is its length.
impl<T> ReadValue for Vec<T> {
    fn value(&self) -> Value {
        Value::Count(u64::try_from(self.len()).unwrap_or(u64::MAX))
    }
}

impl ReadValue for super::Distribution {
    fn value(&self) -> Value {
        Value::Durations(self.clone())
    }
}

impl ReadValue for super::DaemonSnapshot {}
impl ReadValue for super::HoldSnapshot {}

/// A structure of statistics: the struct for serde, and the list of its definitions.
macro_rules! statistics {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[doc = $help:literal])+ pub $field:ident: $type:ty $([$($shown:tt)+])?,)+
        }
        $(computed {
            $($(#[doc = $text:literal])+ $title:ident = $read:expr, [$($column:tt)+],)+
        })?
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[doc = $help])+ pub $field: $type,)+
        }

        impl $name {
            /// The definitions, in the order of the fields.
            pub const STATISTICS: &'static [Statistic<Self>] = &[
                $(
                    Statistic::<Self>::new(stringify!($field), concat!($($help),+), |of: &Self| {
                        of.$field.value()
                    })
                    $($($shown)+)?,
                )+
                $($(
                    Statistic::<Self>::computed(stringify!($title), concat!($($text),+), $read)
                    $($column)+,
                )+)?
            ];
        }
    };
}
pub(super) use statistics;
