//! Scalar functions of the test host, and what they count.
//!
//! | function | what it does |
//! | --- | --- |
//! | `counted(x)` | `x`; counts its rows, so that a file can show how many rows reached a handler |
//! | `fails_on_bad(x)` | `x`; an error where `x` is `bad` |
//! | `panics_on_bad(x)` | `x`; a panic where `x` is `bad` |
//! | `rewrites(path, x)` | `x`; appends a line to the file, so that a source changes while it is read |

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow_schema::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

/// Counters that test files read with `HARNESS COUNTS`.
#[derive(Debug, Default)]
pub struct Probes {
    rows: AtomicU64,
    /// Scans of the counting table.
    pub scans: AtomicU64,
}

impl Probes {
    /// Rows through `counted`, and scans, since the last call.
    pub fn take(&self) -> (u64, u64) {
        (self.rows.swap(0, Ordering::SeqCst), self.scans.swap(0, Ordering::SeqCst))
    }
}

/// Registers the functions.
pub fn register(context: &SessionContext, probes: &Arc<Probes>) {
    for act in [Act::Count, Act::Fail, Act::Panic, Act::Rewrite] {
        context.register_udf(ScalarUDF::from(Probe::new(act, probes)));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Act {
    Count,
    Fail,
    Panic,
    Rewrite,
}

#[derive(Debug)]
struct Probe {
    act: Act,
    signature: Signature,
    probes: Arc<Probes>,
}

impl Probe {
    fn new(act: Act, probes: &Arc<Probes>) -> Self {
        let volatility = if act == Act::Rewrite { Volatility::Volatile } else { Volatility::Immutable };
        let arguments = if act == Act::Rewrite { 2 } else { 1 };
        Self { act, signature: Signature::any(arguments, volatility), probes: Arc::clone(probes) }
    }

    fn act_on(&self, values: &ArrayRef, path: Option<&str>) -> Result<()> {
        match self.act {
            Act::Count => {
                self.probes.rows.fetch_add(values.len() as u64, Ordering::SeqCst);
            }
            Act::Fail if holds_bad(values)? => return exec_err!("the value is bad"),
            Act::Panic if holds_bad(values)? => panic!("a function of the harness panics on purpose"),
            Act::Rewrite => {
                let Some(path) = path else { return exec_err!("rewrites takes a path") };
                std::fs::OpenOptions::new().append(true).open(path).and_then(|mut file| file.write_all(b"99,added\n"))?;
            }
            Act::Fail | Act::Panic => {}
        }
        Ok(())
    }
}

fn holds_bad(values: &ArrayRef) -> Result<bool> {
    let text = cast(values, &DataType::Utf8)?;
    Ok(text.as_string::<i32>().iter().flatten().any(|value| value == "bad"))
}

impl PartialEq for Probe {
    fn eq(&self, other: &Self) -> bool {
        self.act == other.act
    }
}

impl Eq for Probe {}

impl std::hash::Hash for Probe {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.act.hash(state);
    }
}

impl ScalarUDFImpl for Probe {
    fn name(&self) -> &str {
        match self.act {
            Act::Count => "counted",
            Act::Fail => "fails_on_bad",
            Act::Panic => "panics_on_bad",
            Act::Rewrite => "rewrites",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments.last() {
            Some(last) => Ok(last.clone()),
            None => exec_err!("{} takes a value", self.name()),
        }
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let path = match arguments.args.first() {
            Some(ColumnarValue::Scalar(path)) if self.act == Act::Rewrite => Some(path.to_string()),
            _ => None,
        };
        let Some(last) = arguments.args.into_iter().next_back() else { return exec_err!("{} takes a value", self.name()) };
        let values = last.to_array(arguments.number_rows)?;
        self.act_on(&values, path.as_deref())?;
        Ok(ColumnarValue::Array(values))
    }
}

/// Counts one scan.
pub fn count_scan(probes: &Probes) -> u64 {
    probes.scans.fetch_add(1, Ordering::SeqCst)
}
