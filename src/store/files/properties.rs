//! How Parquet files are written: sizes, codec, and which columns get statistics.
//!
//! ```text
//! data file    every column: bounds per row group; key columns: per page too; floating point: none; dictionaries where
//!              values repeat
//! index file   key columns and source ordinals only, per row group; fingerprints plain
//! capture      none, no dictionaries, snappy; fingerprints plain
//! ```
//!
//! Parquet's bounds leave NaN out, while DataFusion orders NaN above every number and prunes by them: a row group with
//! NaN would lose rows of `x > 5`. So floating-point columns have no bounds in the files. Never decides what is stored.

use arrow_schema::Schema;
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, Encoding, LogicalType, Type, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::{ColumnDescriptor, ColumnPath};

use super::{FP_HI, FP_LO, SRC, VERSION};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::OperationalOptions;

/// Sizes and codec of a table's files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriterConfig {
    /// Rows in one row group; fewer where memory is short.
    pub row_group_rows: usize,
    /// A file is closed at this many rows.
    pub target_file_rows: usize,
    /// The codec.
    pub compression: Compression,
}

impl WriterConfig {
    /// What the table's options say.
    ///
    /// # Errors
    /// `OPTION_UNKNOWN` for a codec that does not exist.
    pub fn from_options(options: &OperationalOptions) -> Result<Self> {
        let compression = parse_compression(&options.compression).ok_or_else(|| {
            let remedy = "use uncompressed, snappy, or zstd(1) to zstd(19)";
            Error::new(ErrorCode::OptionUnknown, format!("option \"compression\" cannot be {:?}. Remedy: {remedy}", options.compression))
        })?;
        Ok(Self { row_group_rows: options.row_group_rows.max(1), target_file_rows: options.target_file_rows.max(1), compression })
    }

    fn builder(&self) -> WriterPropertiesBuilder {
        WriterProperties::builder()
            .set_created_by(concat!("datafusion-incremental ", env!("CARGO_PKG_VERSION")).to_string())
            .set_max_row_group_row_count(Some(self.row_group_rows.max(1)))
            .set_compression(self.compression)
    }

    /// For a data file with these columns, of which those of `distinct` hardly repeat a value.
    pub(super) fn data(&self, schema: &Schema, key: &[String], distinct: &[String]) -> Result<WriterProperties, ParquetError> {
        let mut builder = self.builder().set_statistics_enabled(EnabledStatistics::Chunk);
        for leaf in ArrowSchemaConverter::new().convert(schema)?.columns() {
            if belongs_to(leaf, distinct) {
                builder = builder.set_column_dictionary_enabled(leaf.path().clone(), false);
            }
            let enabled = match (is_float(leaf), belongs_to(leaf, key)) {
                (true, _) => EnabledStatistics::None,
                (false, true) => EnabledStatistics::Page,
                (false, false) => continue,
            };
            builder = builder.set_column_statistics_enabled(leaf.path().clone(), enabled);
        }
        Ok(builder.build())
    }

    /// For an index file with these columns.
    pub(super) fn index(&self, schema: &Schema, key: &[String]) -> Result<WriterProperties, ParquetError> {
        let mut builder = self.builder().set_statistics_enabled(EnabledStatistics::None);
        for leaf in ArrowSchemaConverter::new().convert(schema)?.columns() {
            let is_ordinal = leaf.path().parts().first().is_some_and(|name| name == SRC);
            if is_ordinal || (belongs_to(leaf, key) && !is_float(leaf)) {
                builder = builder.set_column_statistics_enabled(leaf.path().clone(), EnabledStatistics::Chunk);
            }
            if belongs_to(leaf, key) && matches!(leaf.physical_type(), Type::INT32 | Type::INT64) {
                // Differences pack ascending keys as small as a codec would, and unpack several times faster: the index is
                // read whole in every run.
                builder = builder
                    .set_column_dictionary_enabled(leaf.path().clone(), false)
                    .set_column_encoding(leaf.path().clone(), Encoding::DELTA_BINARY_PACKED)
                    .set_column_compression(leaf.path().clone(), Compression::UNCOMPRESSED);
            }
            if leaf.path().parts().first().is_some_and(|name| name == SRC || name == VERSION) {
                // The same number for thousands of rows: differences of nothing, without a dictionary to look them up in.
                builder = builder
                    .set_column_dictionary_enabled(leaf.path().clone(), false)
                    .set_column_encoding(leaf.path().clone(), Encoding::DELTA_BINARY_PACKED);
            }
            if leaf.path().parts().first().is_some_and(|name| name == FP_HI || name == FP_LO) {
                // Random bits: a dictionary and a codec cost time and save nothing.
                builder = builder
                    .set_column_dictionary_enabled(leaf.path().clone(), false)
                    .set_column_compression(leaf.path().clone(), Compression::UNCOMPRESSED);
            }
        }
        Ok(builder.build())
    }

    /// For files that live as long as one run: written fast, read once. Dictionaries would save few bytes here.
    pub(super) fn capture(&self) -> WriterProperties {
        let builder = self.builder().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
        // Random bits, which a codec only copies.
        let fingerprints = [FP_HI, FP_LO].map(|name| ColumnPath::from(name.to_string()));
        let plain = |builder: WriterPropertiesBuilder, path| builder.set_column_compression(path, Compression::UNCOMPRESSED);
        fingerprints.into_iter().fold(builder, plain).set_statistics_enabled(EnabledStatistics::None).build()
    }
}

fn parse_compression(text: &str) -> Option<Compression> {
    match text.trim().to_ascii_lowercase().as_str() {
        "uncompressed" => Some(Compression::UNCOMPRESSED),
        "snappy" => Some(Compression::SNAPPY),
        zstd => {
            let level = zstd.strip_prefix("zstd(")?.strip_suffix(')')?.trim().parse().ok()?;
            Some(Compression::ZSTD(ZstdLevel::try_new(level).ok()?))
        }
    }
}

fn belongs_to(leaf: &ColumnDescriptor, columns: &[String]) -> bool {
    leaf.path().parts().first().is_some_and(|name| columns.contains(name))
}

fn is_float(leaf: &ColumnDescriptor) -> bool {
    matches!(leaf.physical_type(), Type::FLOAT | Type::DOUBLE) || matches!(leaf.logical_type_ref(), Some(LogicalType::Float16))
}
