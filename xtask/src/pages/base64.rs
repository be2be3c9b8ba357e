//! Bytes as browsers write them in text.

/// The bytes that a text stands for; none if it stands for nothing.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for character in text.trim_end_matches('=').bytes() {
        bits = bits << 6 | value(character)?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
        bits &= (1 << count) - 1;
    }
    Some(bytes)
}

fn value(character: u8) -> Option<u32> {
    Some(u32::from(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_standard() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(decode("+/8="), Some(vec![0xfb, 0xff]));
        assert_eq!(decode("Zm9v!"), None);
    }
}
