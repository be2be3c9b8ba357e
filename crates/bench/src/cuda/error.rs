//! What can go wrong, in one sentence.

use std::fmt;

/// A call that the library refused.
#[derive(Clone, Debug)]
pub(crate) struct CudaError {
    call: &'static str,
    code: i32,
    text: String,
}

/// There is nothing to run on: no library, or no device behind it.
#[derive(Clone, Debug)]
pub(crate) struct Missing(String);

impl CudaError {
    /// `call` answered with `code`, which means `text`.
    pub(super) fn new(call: &'static str, code: i32, text: String) -> Self {
        Self { call, code, text }
    }

    /// The same with what the compiler had to say.
    pub(super) fn with_log(mut self, log: &str) -> Self {
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if !lines.is_empty() {
            self.text = format!("{} ({})", self.text, lines.join("; "));
        }
        self
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {} (error {})", self.call, self.text, self.code)
    }
}

impl std::error::Error for CudaError {}

impl Missing {
    /// Missing because of `reason`.
    pub(super) fn new(reason: &dyn fmt::Display) -> Self {
        Self(reason.to_string())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no CUDA device to run on: {}", self.0)
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_sentence_with_the_compilers_reason() {
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
