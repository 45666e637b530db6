//! Broken and absurd source files: a run over one ends, or fails with an error that names the table; never a panic of this
//! crate, never more than 60 s or 2 GiB, and what is published stays.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion_incremental::ErrorCode;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::properties::WriterProperties;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::world::{World, foreign_panics, panics, peak_mib, short};

const TIME_LIMIT: Duration = Duration::from_secs(60);
/// What a source that cannot be read may be called.
const FAULTS: &[ErrorCode] = &[
    ErrorCode::CaptureFailed,
    ErrorCode::SchemaChanged,
    ErrorCode::KeyNull,
    ErrorCode::KeyDuplicate,
    ErrorCode::SourceChanged,
    ErrorCode::ValueTooLarge,
    ErrorCode::ValueOutOfRange,
    ErrorCode::ResourcesExhausted,
    ErrorCode::DeleteGuard,
    ErrorCode::TypeUnsupported,
];

struct Case {
    name: String,
    bytes: Vec<u8>,
}

fn case(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Case {
    Case { name: name.into(), bytes: bytes.into() }
}

/// Three row groups of id and v.
fn good_parquet() -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..300));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..300).map(|n| format!("text {n}"))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("v", texts)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Where the footer begins, by its own word.
fn footer_start(file: &[u8]) -> usize {
    let at = file.len() - 8;
    at - u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize
}

/// The same pages under another footer.
fn with_metadata(file: &[u8], edit: impl Fn(ParquetMetaData) -> ParquetMetaData) -> Vec<u8> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(file)).unwrap();
    let mut out = file[..footer_start(file)].to_vec();
    ParquetMetaDataWriter::new(&mut out, &edit(metadata)).finish().unwrap();
    out
}

fn with_groups(file: &[u8], edit: impl Fn(RowGroupMetaData) -> RowGroupMetaData) -> Vec<u8> {
    with_metadata(file, |metadata| {
        let mut builder = metadata.into_builder();
        // One group lies, and one column: the writer adds up those of all, and would overflow.
        let edited = |(n, group)| if n == 0 { edit(group) } else { group };
        let groups = builder.take_row_groups().into_iter().enumerate().map(edited).collect();
        builder.set_row_groups(groups).build()
    })
}

fn with_columns(file: &[u8], edit: impl Fn(ColumnChunkMetaData) -> ColumnChunkMetaData) -> Vec<u8> {
    with_groups(file, |group| {
        let edited = |(n, column)| if n == 0 { edit(column) } else { column };
        let columns = group.columns().iter().cloned().enumerate().map(edited).collect();
        group.into_builder().set_column_metadata(columns).build().unwrap()
    })
}

/// A thrift varint.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn zigzag(out: &mut Vec<u8>, value: i64) {
    varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// One schema element in thrift's compact form: a group of `children`, or a leaf of 64-bit numbers.
fn element(out: &mut Vec<u8>, name: &str, children: Option<i64>) {
    if children.is_none() {
        out.push(0x15); // field 1, type: INT64
        zigzag(out, 2);
        out.push(0x25); // field 3, repetition: OPTIONAL
    } else {
        out.push(0x35); // field 3
    }
    zigzag(out, 1);
    out.push(0x18); // field 4, name
    varint(out, name.len() as u64);
    out.extend_from_slice(name.as_bytes());
    if let Some(children) = children {
        out.push(0x15); // field 5, number of children
        zigzag(out, children);
    }
    out.push(0);
}

/// A file without row groups whose footer has these schema elements, of which it claims to have `claimed`.
fn footer_only(elements: &[u8], claimed: u64, rows: i64) -> Vec<u8> {
    let mut footer = vec![0x15]; // field 1, version
    zigzag(&mut footer, 1);
    footer.push(0x19); // field 2, list of structs
    footer.push(0xFC);
    varint(&mut footer, claimed);
    footer.extend_from_slice(elements);
    footer.push(0x16); // field 3, number of rows
    zigzag(&mut footer, rows);
    footer.extend([0x19, 0x0C, 0]); // field 4, no row groups; end
    let mut file = b"PAR1".to_vec();
    file.extend_from_slice(&footer);
    file.extend_from_slice(&(footer.len() as u32).to_le_bytes());
    file.extend_from_slice(b"PAR1");
    file
}

fn deep(levels: usize) -> Vec<u8> {
    let mut elements = vec![];
    (0..levels).for_each(|_| element(&mut elements, "g", Some(1)));
    element(&mut elements, "leaf", None);
    footer_only(&elements, levels as u64 + 1, 0)
}

fn wide(columns: usize) -> Vec<u8> {
    let mut elements = vec![];
    element(&mut elements, "root", Some(columns as i64));
    (0..columns).for_each(|n| element(&mut elements, &format!("c{n}"), None));
    footer_only(&elements, columns as u64 + 1, 0)
}

/// Changes what is said of a column.
type Edit = fn(ColumnChunkMetaData, i64) -> ColumnChunkMetaData;

/// Footers that lie.
fn lying_footers() -> Vec<Case> {
    let good = good_parquet();
    let mut cases = vec![];
    for length in [0, 1, 7, good.len() as u32 - 8, good.len() as u32, u32::MAX / 2, u32::MAX] {
        let mut file = good.clone();
        let at = file.len() - 8;
        file[at..at + 4].copy_from_slice(&length.to_le_bytes());
        cases.push(case(format!("footer of {length} bytes"), file));
    }
    for rows in [i64::MAX - 100_000, i64::MIN, -1, 0, 1, 1 << 40] {
        cases.push(case(format!("groups of {rows} rows"), with_groups(&good, |g| g.into_builder().set_num_rows(rows).build().unwrap())));
        cases.push(case(
            format!("groups of {rows} bytes"),
            with_groups(&good, |g| g.into_builder().set_total_byte_size(rows).build().unwrap()),
        ));
        let columns: [(&str, Edit); 5] = [
            ("values", |c, n| c.into_builder().set_num_values(n).build().unwrap()),
            ("compressed bytes", |c, n| c.into_builder().set_total_compressed_size(n).build().unwrap()),
            ("uncompressed bytes", |c, n| c.into_builder().set_total_uncompressed_size(n).build().unwrap()),
            ("data offset", |c, n| c.into_builder().set_data_page_offset(n).build().unwrap()),
            ("dictionary offset", |c, n| c.into_builder().set_dictionary_page_offset(Some(n)).build().unwrap()),
        ];
        for (what, edit) in columns {
            cases.push(case(format!("columns with {what} {rows}"), with_columns(&good, |column| edit(column, rows))));
        }
    }
    cases.push(case("no row groups", with_metadata(&good, |m| m.into_builder().set_row_groups(vec![]).build())));
    cases.push(case(
        "each row group 500 times",
        with_metadata(&good, |metadata| {
            let mut builder = metadata.into_builder();
            let groups = builder.take_row_groups();
            builder.set_row_groups(groups.iter().cycle().take(1500).cloned().collect()).build()
        }),
    ));
    let mut one = vec![];
    element(&mut one, "root", Some(1));
    element(&mut one, "id", None);
    for (claimed, rows) in [(2, 0), (2, i64::MAX), (3, 0), (1 << 31, 0), (u64::MAX, 0), (0, 0), (1, 0)] {
        cases.push(case(format!("{claimed} schema elements claimed, {rows} rows"), footer_only(&one, claimed, rows)));
    }
    for children in [-1, 0, i64::from(i32::MAX), i64::MAX] {
        let mut elements = vec![];
        element(&mut elements, "root", Some(children));
        element(&mut elements, "id", None);
        cases.push(case(format!("a group of {children} children"), footer_only(&elements, 2, 0)));
    }
    cases
}

/// Files that are only broken.
fn broken(good: &[u8], seeds: u64) -> Vec<Case> {
    let mut cases: Vec<Case> = (0..good.len()).step_by(good.len() / 40).map(|cut| case(format!("cut at {cut}"), &good[..cut])).collect();
    for seed in 0..seeds {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut file = good.to_vec();
        // Half of them in the footer, whose bytes decide more.
        let from = if seed % 2 == 0 { footer_start(good) } else { 4 };
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(from..file.len());
            file[at] = rng.random();
        }
        cases.push(case(format!("seed {seed}"), file));
    }
    cases
}

/// A published table `t` over one good file, which then becomes each of the cases in turn.
async fn each(world: &World, format: &str, good: &[u8], cases: Vec<Case>) {
    let (count, mut failed, mut slowest) = (cases.len(), 0, Duration::ZERO);
    let file = world.path().join(format!("s.{}", format.to_lowercase()));
    std::fs::write(&file, good).unwrap();
    let options = if format == "CSV" { " OPTIONS ('format.has_header' 'true')" } else { "" };
    let location = file.display();
    world.ok(&format!("CREATE EXTERNAL TABLE s (id BIGINT NOT NULL, v VARCHAR) STORED AS {format} LOCATION '{location}'{options}")).await;
    world.ok("CREATE INCREMENTAL TABLE t FROM s KEY (id) TRACK (v) WITH (capture_retries = 0, max_deleted_fraction = NULL) AS SELECT id, v FROM input; REFRESH t").await;
    for Case { name, bytes } in cases {
        replace(&file, &bytes);
        let start = Instant::now();
        let outcome = world.sql("REFRESH t").await;
        let took = start.elapsed();
        slowest = slowest.max(took);
        assert!(took < TIME_LIMIT, "{name}: {took:?}");
        if let Err(e) = outcome {
            failed += 1;
            assert!(FAULTS.contains(&e.code()), "{name}: {}", short(&e.to_string()));
            assert!(e.message().contains("\"t\""), "{name}: the error names no table: {}", short(&e.to_string()));
        }
        assert_eq!(panics(), 0, "{name}: a panic");
        world.ok("SELECT count(*), min(v) FROM t").await;
    }
    // And as if nothing had been.
    replace(&file, good);
    world.ok("REFRESH t FULL").await;
    println!(
        "{format}: {count} hostile files, {failed} refused, slowest {slowest:?}, peak {} MiB, {} panics of dependencies became errors",
        peak_mib(),
        foreign_panics()
    );
    assert!(peak_mib() < 2048, "{} MiB", peak_mib());
}

fn replace(file: &Path, bytes: &[u8]) {
    // A new file each time, so that nobody takes it for the old one.
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parquet_files_that_lie() {
    let world = World::new().await;
    let good = good_parquet();
    let mut cases = lying_footers();
    cases.extend(broken(&good, 150));
    cases.extend([case("no magic", vec![0; 1000]), case("only magic", *b"PAR1PAR1"), case("magic twice", *b"PAR1\0\0\0\0PAR1")]);
    for levels in [50, 500, 5_000] {
        cases.push(case(format!("{levels} levels deep"), deep(levels)));
    }
    cases.push(case("100,000 columns", wide(100_000)));
    each(&world, "PARQUET", &good, cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csv_files_that_lie() {
    let world = World::new().await;
    let line = |text: &str| format!("id,v\n1,a\n{text}\n3,c\n").into_bytes();
    let cases = vec![
        case("no rows", *b"id,v\n"),
        case("empty lines", "\n".repeat(1_000_000)),
        case("a quote that never ends", line("2,\"b")),
        case("quotes in quotes", line("2,\"b\"\"\"\"\"c\"d")),
        case("too few fields", line("2")),
        case("too many fields", line(&"2,".repeat(100_000))),
        case("100,000 columns in the header", format!("{}\n1,a\n", (0..100_000).map(|n| format!("c{n}")).collect::<Vec<_>>().join(","))),
        case("no number", line("two,b")),
        case("a number that does not fit", line("99999999999999999999999,b")),
        case("a number of a million digits", line(&format!("{},b", "9".repeat(1_000_000)))),
        case("a null key", line(",b")),
        case("a key twice", line("1,b")),
        case("no UTF-8", b"id,v\n1,\xff\xfe\n".to_vec()),
        case("half a character", b"id,v\n1,\xe2\x82\n".to_vec()),
        case("NUL", b"id,v\n1,\0\0\0\n\0,\0\n".to_vec()),
        case("a byte order mark", b"\xef\xbb\xbfid,v\n1,a\n".to_vec()),
        case("UTF-16", b"\xff\xfei\0d\0,\0v\0\n\0".to_vec()),
        case("one field of 64 MiB", line(&format!("2,{}", "x".repeat(64 << 20)))),
        case("one line of quotes", line(&"\"".repeat(1_000_001))),
        case("carriage returns", b"id,v\r1,a\r2,b\r".to_vec()),
        case("the header's columns moved", *b"v,id\na,1\n"),
        case("binary", (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<u8>>()),
    ];
    each(&world, "CSV", b"id,v\n1,a\n2,b\n3,c\n", cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_files_that_lie() {
    let world = World::new().await;
    let row = |text: &str| format!("{{\"id\":1,\"v\":\"a\"}}\n{text}\n{{\"id\":3,\"v\":\"c\"}}\n").into_bytes();
    let many = 100_000;
    let nested: Vec<(String, Vec<u8>)> = vec![
        ("arrays".into(), row(&format!("{{\"id\":2,\"x\":{}{}}}", "[".repeat(many), "]".repeat(many)))),
        ("arrays that do not end".into(), row(&format!("{{\"id\":2,\"x\":{}", "[".repeat(many)))),
        ("objects".into(), row(&format!("{{\"id\":2,\"x\":{}1{}}}", "{\"a\":".repeat(many), "}".repeat(many)))),
        ("a value instead".into(), row(&format!("{{\"id\":2,\"v\":{}{}}}", "[".repeat(many), "]".repeat(many)))),
    ];
    let mut cases: Vec<Case> = nested.iter().map(|(name, bytes)| case(format!("{many} {name}"), bytes.clone())).collect();
    cases.extend([
        case("cut", *b"{\"id\":1,\"v\":\"a\"}\n{\"id\":2,\"v\":\"b"),
        case("no object", row("[1, 2]")),
        case("a text", row("\"x\"")),
        case("a key twice in the object", row("{\"id\":2,\"id\":4,\"v\":\"b\"}")),
        case("a key column of text", row("{\"id\":\"x\",\"v\":\"b\"}")),
        case("a number that does not fit", row("{\"id\":1e400,\"v\":\"b\"}")),
        case("a number of a million digits", row(&format!("{{\"id\":{},\"v\":\"b\"}}", "9".repeat(1_000_000)))),
        case("half a surrogate", row("{\"id\":2,\"v\":\"\\ud800\"}")),
        case("no UTF-8", b"{\"id\":1,\"v\":\"\xff\"}\n".to_vec()),
        case("NUL", row("{\"id\":2,\"v\":\"\\u0000\"}\0")),
        case("100,000 fields", row(&format!("{{\"id\":2{}}}", (0..many).map(|n| format!(",\"f{n}\":{n}")).collect::<String>()))),
        case("one value of 64 MiB", row(&format!("{{\"id\":2,\"v\":\"{}\"}}", "x".repeat(64 << 20)))),
        case("a null key", row("{\"v\":\"b\"}")),
        case("white space", " ".repeat(10_000_000)),
        case("NaN", row("{\"id\":NaN}")),
    ]);
    each(&world, "JSON", b"{\"id\":1,\"v\":\"a\"}\n{\"id\":2,\"v\":\"b\"}\n", cases).await;
    // Where the columns are inferred, the files decide them.
    for (name, bytes) in nested {
        let file = world.path().join("inferred.json");
        std::fs::write(&file, bytes).unwrap();
        let start = Instant::now();
        let _ = world.sql(&format!("CREATE OR REPLACE EXTERNAL TABLE inferred STORED AS JSON LOCATION '{}'", file.display())).await;
        let _ = world.sql("CREATE INCREMENTAL TABLE i FROM inferred KEY (id) AS SELECT id FROM input; REFRESH i").await;
        assert!(start.elapsed() < TIME_LIMIT, "{name}");
    }
    assert_eq!(panics(), 0);
}
