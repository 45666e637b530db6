//! Unique ids and random secrets.

use std::fmt;
use std::sync::Mutex;

use crate::error::{Error, ErrorCode, Result};

/// The source of randomness.
pub trait Ids: fmt::Debug + Send + Sync {
    /// Fills `bytes` with unpredictable bytes.
    fn fill(&self, bytes: &mut [u8]) -> Result<()>;

    /// A new unique id: 32 lower-case hexadecimal digits.
    fn id(&self) -> Result<String> {
        let mut bytes = [0_u8; 16];
        self.fill(&mut bytes)?;
        Ok(hex(&bytes))
    }
}

/// The operating system's random source.
#[derive(Debug, Default, Clone, Copy)]
pub struct RandomIds;

impl Ids for RandomIds {
    #[allow(clippy::disallowed_methods)] // the one place that reads the machine's random source
    fn fill(&self, bytes: &mut [u8]) -> Result<()> {
        getrandom::fill(bytes).map_err(|e| {
            Error::new(ErrorCode::ResourcesExhausted, format!("the operating system gives no random bytes: {e}. Remedy: check the system"))
        })
    }
}

/// Reproducible ids for tests and simulations: the same seed gives the same sequence.
#[derive(Debug)]
pub struct SeededIds(Mutex<u64>);

impl SeededIds {
    /// Ids that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }
}

impl Ids for SeededIds {
    fn fill(&self, bytes: &mut [u8]) -> Result<()> {
        let mut state = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for chunk in bytes.chunks_mut(8) {
            *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            chunk.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

/// Lower-case hexadecimal digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a String cannot fail
        text
    })
}
