//! How a file of results is laid out: compact, but with a line for each measurement, so that what
//! differs between two files can be seen and one measurement can be cut out.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// The text: a line for each field, and for each value of a field that has several.
pub(super) fn text(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Lines::default());
    // PANIC: there are no maps with keys that are not text, and memory takes every byte.
    value.serialize(&mut serializer).expect("results are plain data");
    bytes.push(b'\n');
    // PANIC: the serializer writes nothing else.
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// Breaks lines around what is at most two deep.
#[derive(Clone, Debug, Default)]
struct Lines {
    /// How many objects and lists are open.
    depth: usize,
}

impl Lines {
    /// A comma if something came before, and a new line at these depths.
    fn next(
        &self,
        out: &mut (impl Write + ?Sized),
        is_first: bool,
        depth: usize,
    ) -> io::Result<()> {
        if !is_first {
            out.write_all(b",")?;
        }
        if self.depth == depth { out.write_all(b"\n") } else { Ok(()) }
    }
}

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        out.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        out.write_all(if self.depth == 0 { b"\n}" } else { b"}" })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first, 1)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        out.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        out.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.next(out, first, 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_and_every_value_of_a_list_has_a_line() {
        let value = serde_json::json!({
            "a": 1,
            "b": [{ "x": [1, 2], "y": {} }, { "x": [], "y": { "z": "," } }],
            "c": [],
        });
        let text = text(&value);
        let expected = "{\n\"a\":1,\n\"b\":[\n{\"x\":[1,2],\"y\":{}},\n\
                        {\"x\":[],\"y\":{\"z\":\",\"}}],\n\"c\":[]\n}\n";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
