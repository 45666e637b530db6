//! Random types, arrays of them, other encodings of the same arrays, and one text per value.
//!
//! A cell is a small code or null; [`Ty::build`] makes arrays from codes. One code may come out in several guises that
//! are equal: NaN payloads, signed zeros, orders of map entries. [`canon`] is the model's own equality: two values are
//! equal when their texts are. It shares no code with the crate.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, nullif};
use arrow::datatypes::*;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

type F16 = <Float16Type as ArrowPrimitiveType>::Native;

/// A logical type.
#[derive(Debug, Clone, PartialEq)]
pub enum Ty {
    /// Any type without children.
    Leaf(DataType),
    /// A list.
    List(Box<Ty>),
    /// A list of exactly two.
    Pair(Box<Ty>),
    /// A struct with fields `a` and `b`.
    Struct(Box<Ty>, Box<Ty>),
    /// A map from text.
    Map(Box<Ty>),
}

fn leaves() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    let zones = ["UTC", "+02:00", "Europe/Paris"];
    let mut all = vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float16,
        Float32,
        Float64,
        Utf8,
        Binary,
        FixedSizeBinary(3),
        Decimal32(7, 2),
        Decimal64(15, 3),
        Decimal128(30, 4),
        Decimal256(60, 5),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
    ];
    for unit in [Second, Millisecond, Microsecond, Nanosecond] {
        all.push(Timestamp(unit, None));
        all.push(Duration(unit));
        all.extend(zones.iter().map(|zone| Timestamp(unit, Some((*zone).into()))));
    }
    all
}

impl Ty {
    /// A random type; `key`: one that a key column may have.
    pub fn random(rng: &mut SmallRng, key: bool, depth: u32) -> Self {
        let nested = depth < 2 && rng.random_bool(0.25);
        if nested {
            let mut child = || Box::new(Self::random(rng, key, depth + 1));
            let (a, b) = (child(), child());
            return match rng.random_range(0..if key { 3 } else { 4 }) {
                0 => Self::List(a),
                1 => Self::Pair(a),
                2 => Self::Struct(a, b),
                _ => Self::Map(a),
            };
        }
        let leaves = leaves();
        // Text and whole numbers are what most tables have.
        match rng.random_range(0..10) {
            0 | 1 => Self::Leaf(DataType::Utf8),
            2 => Self::Leaf(DataType::Int64),
            _ => Self::Leaf(leaves[rng.random_range(0..leaves.len())].clone()),
        }
    }

    /// The plain Arrow type.
    pub fn data_type(&self) -> DataType {
        let item = |ty: &Ty| Arc::new(Field::new("item", ty.data_type(), true));
        match self {
            Self::Leaf(data_type) => data_type.clone(),
            Self::List(ty) => DataType::List(item(ty)),
            Self::Pair(ty) => DataType::FixedSizeList(item(ty), 2),
            Self::Struct(a, b) => DataType::Struct(struct_fields(a, b)),
            Self::Map(ty) => DataType::Map(Arc::new(Field::new("entries", DataType::Struct(map_fields(ty)), false)), false),
        }
    }

    /// The plain array of `codes`; nulls keep bytes of some value under them.
    pub fn build(&self, codes: &[Option<u32>], rng: &mut SmallRng) -> ArrayRef {
        let filled: Vec<u32> = codes.iter().map(|code| code.unwrap_or_else(|| rng.random_range(0..9))).collect();
        let array = match self {
            Self::Leaf(data_type) => leaf(data_type, &filled, rng),
            Self::List(ty) => list(ty, &filled, rng),
            Self::Pair(ty) => {
                let codes: Vec<Option<u32>> = filled.iter().flat_map(|code| [digit(*code, 0), digit(*code, 1)]).collect();
                let item = Arc::new(Field::new("item", ty.data_type(), true));
                Arc::new(FixedSizeListArray::new(item, 2, ty.build(&codes, rng), None))
            }
            Self::Struct(a, b) => {
                let part = |place| filled.iter().map(|code| digit(*code, place)).collect::<Vec<_>>();
                let children = vec![a.build(&part(0), rng), b.build(&part(1), rng)];
                Arc::new(StructArray::new(struct_fields(a, b), children, None))
            }
            Self::Map(ty) => map(ty, &filled, rng),
        };
        if codes.iter().all(Option::is_some) {
            return array;
        }
        let nulls: BooleanArray = codes.iter().map(|code| Some(code.is_none())).collect();
        nullif(&array, &nulls).unwrap()
    }
}

fn struct_fields(a: &Ty, b: &Ty) -> Fields {
    vec![Field::new("a", a.data_type(), true), Field::new("b", b.data_type(), true)].into()
}

fn map_fields(ty: &Ty) -> Fields {
    vec![Field::new("key", DataType::Utf8, false), Field::new("value", ty.data_type(), true)].into()
}

/// One digit of a code in base 7, as the code of a child; 6 is null.
fn digit(code: u32, place: u32) -> Option<u32> {
    let digit = code / 7_u32.pow(place) % 7;
    // The highest place carries the rest, so that different codes stay different.
    let digit = if place == 1 { digit + code / 49 * 7 } else { digit };
    (digit != 6).then_some(digit)
}

fn list(ty: &Ty, codes: &[u32], rng: &mut SmallRng) -> ArrayRef {
    let mut children = Vec::new();
    let mut lengths = Vec::new();
    for code in codes {
        let mut rest = *code;
        let mut length = 0;
        while rest > 0 {
            rest -= 1;
            children.push((rest % 5 != 4).then_some(rest % 5));
            rest /= 5;
            length += 1;
        }
        lengths.push(length);
    }
    let item = Arc::new(Field::new("item", ty.data_type(), true));
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), ty.build(&children, rng), None))
}

fn map(ty: &Ty, codes: &[u32], rng: &mut SmallRng) -> ArrayRef {
    let (mut keys, mut values, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for code in codes {
        // Every second code lacks the entry "y".
        let mut entries = vec![("x", digit(*code, 0)), ("z", Some(code / 2)), ("y", digit(*code, 1))];
        if code % 2 == 1 {
            entries.pop();
        }
        entries.shuffle(rng);
        lengths.push(entries.len());
        for (key, value) in entries {
            keys.push(key);
            values.push(value);
        }
    }
    let entries = StructArray::new(map_fields(ty), vec![Arc::new(StringArray::from(keys)), ty.build(&values, rng)], None);
    let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    Arc::new(MapArray::new(field, OffsetBuffer::from_lengths(lengths), entries, None, false))
}

/// Whole numbers with both limits among them.
fn integer(code: u32, min: i128, max: i128) -> i128 {
    match code {
        0 => min,
        1 => max,
        2 => 0,
        _ => (i128::from(code) - 5).clamp(min + 1, max - 1),
    }
}

fn float(code: u32, rng: &mut SmallRng) -> f64 {
    match code {
        0 => f64::from_bits(0x7ff8_0000_0000_0000 | (rng.random::<u64>() & 0x8007_ffff_ffff_ffff)),
        1 => [0.0, -0.0][rng.random_range(0..2)],
        2 => f64::INFINITY,
        3 => f64::NEG_INFINITY,
        4 => 0.1 + 0.2,
        5 => 0.3,
        _ => f64::from(code) * 0.5 - 4.0,
    }
}

fn text(code: u32) -> String {
    match code {
        0 => String::new(),
        1 => " ".to_string(),
        2 => "a".to_string(),
        3 => "A".to_string(),
        4 => "e\u{301}".to_string(),
        5 => "\u{e9}".to_string(),
        6 => "a\0".to_string(),
        7 => "long ".repeat(60),
        _ => format!("text {code}"),
    }
}

fn leaf(data_type: &DataType, codes: &[u32], rng: &mut SmallRng) -> ArrayRef {
    macro_rules! integers {
        ($t:ty) => {{
            type N = <$t as ArrowPrimitiveType>::Native;
            let values = codes.iter().map(|code| integer(*code, N::MIN.into(), N::MAX.into()) as N);
            Arc::new(PrimitiveArray::<$t>::from_iter_values(values)) as ArrayRef
        }};
    }
    macro_rules! bounded {
        ($t:ty, $min:expr, $max:expr) => {{
            let values = codes.iter().map(|code| integer(*code, $min, $max) as <$t as ArrowPrimitiveType>::Native);
            Arc::new(PrimitiveArray::<$t>::from_iter_values(values).with_data_type(data_type.clone())) as ArrayRef
        }};
    }
    const DAY: i128 = 86_400;
    // Instants that every zone's calendar holds, in the unit.
    let instants = |per_second: i128| (-62_000_000_000 * per_second, 250_000_000_000 * per_second);
    match data_type {
        DataType::Boolean => Arc::new(codes.iter().map(|code| Some(code % 2 == 1)).collect::<BooleanArray>()),
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::UInt8 => integers!(UInt8Type),
        DataType::UInt16 => integers!(UInt16Type),
        DataType::UInt32 => integers!(UInt32Type),
        DataType::UInt64 => integers!(UInt64Type),
        DataType::Float16 => {
            let values = codes.iter().map(|code| F16::from_f64(float(*code, rng)));
            Arc::new(Float16Array::from_iter_values(values))
        }
        DataType::Float32 => Arc::new(Float32Array::from_iter_values(codes.iter().map(|code| float(*code, rng) as f32))),
        DataType::Float64 => Arc::new(Float64Array::from_iter_values(codes.iter().map(|code| float(*code, rng)))),
        DataType::Utf8 => Arc::new(StringArray::from_iter_values(codes.iter().map(|code| text(*code)))),
        DataType::Binary => Arc::new(BinaryArray::from_iter_values(codes.iter().map(|code| [text(*code).as_bytes(), &[255]].concat()))),
        DataType::FixedSizeBinary(_) => {
            let values = codes.iter().map(|code| Some(code.to_le_bytes()[..3].to_vec()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 3).unwrap())
        }
        DataType::Decimal32(..) => bounded!(Decimal32Type, -9_999_999, 9_999_999),
        DataType::Decimal64(..) => bounded!(Decimal64Type, -999_999_999_999_999, 999_999_999_999_999),
        DataType::Decimal128(..) => bounded!(Decimal128Type, -(10_i128.pow(30) - 1), 10_i128.pow(30) - 1),
        DataType::Decimal256(..) => {
            let factor = i256::from_i128(10_i128.pow(20));
            let values = codes.iter().map(|code| i256::from_i128(integer(*code, -(10_i128.pow(38)), 10_i128.pow(38))).wrapping_mul(factor));
            Arc::new(Decimal256Array::from_iter_values(values).with_data_type(data_type.clone()))
        }
        DataType::Date32 => bounded!(Date32Type, -719_000, 2_900_000),
        DataType::Date64 => {
            Arc::new(Date64Array::from_iter_values(codes.iter().map(|code| integer(*code, -719_000, 2_900_000) as i64 * 86_400_000)))
        }
        DataType::Time32(TimeUnit::Second) => bounded!(Time32SecondType, 0, DAY - 1),
        DataType::Time32(_) => bounded!(Time32MillisecondType, 0, DAY * 1000 - 1),
        DataType::Time64(TimeUnit::Microsecond) => bounded!(Time64MicrosecondType, 0, DAY * 1_000_000 - 1),
        DataType::Time64(_) => bounded!(Time64NanosecondType, 0, DAY * 1_000_000_000 - 1),
        DataType::Timestamp(TimeUnit::Second, _) => bounded!(TimestampSecondType, instants(1).0, instants(1).1),
        DataType::Timestamp(TimeUnit::Millisecond, _) => bounded!(TimestampMillisecondType, instants(1000).0, instants(1000).1),
        DataType::Timestamp(TimeUnit::Microsecond, _) => bounded!(TimestampMicrosecondType, instants(1_000_000).0, instants(1_000_000).1),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => bounded!(TimestampNanosecondType, i64::MIN.into(), i64::MAX.into()),
        DataType::Duration(TimeUnit::Second) => bounded!(DurationSecondType, i64::MIN.into(), i64::MAX.into()),
        DataType::Duration(TimeUnit::Millisecond) => bounded!(DurationMillisecondType, i64::MIN.into(), i64::MAX.into()),
        DataType::Duration(TimeUnit::Microsecond) => bounded!(DurationMicrosecondType, i64::MIN.into(), i64::MAX.into()),
        DataType::Duration(TimeUnit::Nanosecond) => bounded!(DurationNanosecondType, i64::MIN.into(), i64::MAX.into()),
        other => unreachable!("no leaf {other}"),
    }
}

/// The same values in another encoding: views, large offsets, dictionaries, runs, other field orders, aliases of UTC.
pub fn encode(array: &ArrayRef, rng: &mut SmallRng) -> ArrayRef {
    let dictionary = |array: &ArrayRef| {
        let data_type = DataType::Dictionary(Box::new(DataType::Int32), Box::new(array.data_type().clone()));
        cast(array, &data_type).unwrap()
    };
    match array.data_type() {
        DataType::Utf8 => match rng.random_range(0..6) {
            0 => cast(array, &DataType::LargeUtf8).unwrap(),
            1 => cast(array, &DataType::Utf8View).unwrap(),
            2 => dictionary(array),
            3 => runs(array),
            _ => Arc::clone(array),
        },
        DataType::Binary => match rng.random_range(0..4) {
            0 => cast(array, &DataType::LargeBinary).unwrap(),
            1 => cast(array, &DataType::BinaryView).unwrap(),
            _ => Arc::clone(array),
        },
        DataType::Int64 | DataType::Float64 if rng.random_bool(0.3) => dictionary(array),
        DataType::Timestamp(TimeUnit::Microsecond, Some(zone)) if zone.as_ref() == "UTC" && rng.random_bool(0.5) => {
            Arc::new(array.as_primitive::<TimestampMicrosecondType>().clone().with_timezone("+00:00"))
        }
        DataType::Struct(_) => {
            let array = array.as_struct();
            let mut order: Vec<usize> = (0..array.num_columns()).collect();
            order.shuffle(rng);
            let columns: Vec<ArrayRef> = order.iter().map(|column| encode(array.column(*column), rng)).collect();
            let names = order.iter().map(|column| array.fields()[*column].name().clone());
            let fields: Fields = names.zip(&columns).map(|(name, column)| Field::new(name, column.data_type().clone(), true)).collect();
            Arc::new(StructArray::new(fields, columns, array.nulls().cloned()))
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let values = encode(list.values(), rng);
            let item = Arc::new(Field::new(["item", "element"][rng.random_range(0..2)], values.data_type().clone(), true));
            let list = ListArray::new(Arc::clone(&item), list.offsets().clone(), values, list.nulls().cloned());
            if rng.random_bool(0.3) { cast(&list, &DataType::LargeList(item)).unwrap() } else { Arc::new(list) }
        }
        _ => Arc::clone(array),
    }
}

/// Run-end encoding, one run per row.
fn runs(array: &ArrayRef) -> ArrayRef {
    if array.is_empty() {
        return Arc::clone(array);
    }
    let ends: Int32Array = (1..=array.len() as i32).collect();
    Arc::new(RunArray::<Int32Type>::try_new(&ends, array).unwrap())
}

/// The text of one value; equal values have equal texts, whatever their encoding.
pub fn canon(array: &dyn Array, row: usize) -> String {
    match array.data_type() {
        // Their null buffers do not tell: the value does.
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            if dictionary.keys().is_null(row) {
                return "null".to_string();
            }
            return canon(dictionary.values(), dictionary.normalized_keys()[row]);
        }
        DataType::RunEndEncoded(_, _) => {
            let runs = array.as_any().downcast_ref::<RunArray<Int32Type>>().expect("runs have 32-bit ends");
            return canon(runs.values(), runs.get_physical_index(row));
        }
        _ if array.is_null(row) => return "null".to_string(),
        _ => {}
    }
    let join = |values: ArrayRef| (0..values.len()).map(|row| canon(&values, row)).collect::<Vec<_>>().join(", ");
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Float16 => canon_float(array.as_primitive::<Float16Type>().value(row).to_f64()),
        DataType::Float32 => canon_float(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => canon_float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => format!("{:?}", array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => format!("{:?}", array.as_string::<i64>().value(row)),
        DataType::Utf8View => format!("{:?}", array.as_string_view().value(row)),
        DataType::Binary => format!("{:?}", array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => format!("{:?}", array.as_binary::<i64>().value(row)),
        DataType::BinaryView => format!("{:?}", array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => format!("{:?}", array.as_fixed_size_binary().value(row)),
        DataType::List(_) => format!("[{}]", join(array.as_list::<i32>().value(row))),
        DataType::LargeList(_) => format!("[{}]", join(array.as_list::<i64>().value(row))),
        DataType::FixedSizeList(_, _) => format!("[{}]", join(array.as_fixed_size_list().value(row))),
        DataType::Struct(fields) => {
            let columns = array.as_struct();
            let mut parts: Vec<String> =
                fields.iter().zip(columns.columns()).map(|(field, column)| format!("{}: {}", field.name(), canon(column, row))).collect();
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        DataType::Map(_, _) => {
            let entries = array.as_map().value(row);
            let mut parts: Vec<String> = (0..entries.len())
                .map(|entry| format!("{} → {}", canon(entries.column(0), entry), canon(entries.column(1), entry)))
                .collect();
            parts.sort();
            format!("({})", parts.join(", "))
        }
        _ => canon_number(array, row),
    }
}

fn canon_float(value: f64) -> String {
    match value {
        nan if nan.is_nan() => "NaN".to_string(),
        0.0 => "0".to_string(),
        other => format!("{:x}", other.to_bits()),
    }
}

fn canon_number(array: &dyn Array, row: usize) -> String {
    downcast_primitive_array!(
        array => format!("{:?}", array.value(row)),
        other => unreachable!("no value of type {other}")
    )
}

/// The type with its encodings folded away, for the comparison of published types with the source's.
pub fn fold(data_type: &DataType) -> String {
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => "Utf8".to_string(),
        DataType::LargeBinary | DataType::BinaryView => "Binary".to_string(),
        DataType::Dictionary(_, value) => fold(value),
        DataType::RunEndEncoded(_, values) => fold(values.data_type()),
        DataType::List(item) | DataType::LargeList(item) => format!("[{}]", fold(item.data_type())),
        DataType::FixedSizeList(item, length) => format!("[{}; {length}]", fold(item.data_type())),
        DataType::Struct(fields) => {
            let mut parts: Vec<String> = fields.iter().map(|field| format!("{}: {}", field.name(), fold(field.data_type()))).collect();
            parts.sort();
            format!("{{{}}}", parts.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => format!("({})", fields.iter().map(|field| fold(field.data_type())).collect::<Vec<_>>().join(" → ")),
            other => other.to_string(),
        },
        DataType::Timestamp(unit, Some(zone)) if zone.as_ref() == "+00:00" => DataType::Timestamp(*unit, Some("UTC".into())).to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
    use rand::SeedableRng;

    use super::*;

    fn texts(array: &ArrayRef) -> Vec<String> {
        (0..array.len()).map(|row| canon(array, row)).collect()
    }

    /// The model reads every guise and every encoding alike, and Parquet holds every type.
    #[test]
    fn guises_encodings_and_parquet_keep_the_texts() {
        for seed in 0..2000 {
            let mut rng = SmallRng::seed_from_u64(seed);
            let ty = if seed < 60 { Ty::Leaf(leaves()[seed as usize % leaves().len()].clone()) } else { Ty::random(&mut rng, false, 0) };
            let codes: Vec<Option<u32>> = (0..40).map(|code| (code % 6 != 5).then_some(code)).collect();
            let (first, second) = (ty.build(&codes, &mut rng), ty.build(&codes, &mut rng));
            assert_eq!(first.data_type(), &ty.data_type());
            assert_eq!(texts(&first), texts(&second), "{ty:?}");
            let encoded = encode(&second, &mut rng);
            assert_eq!(texts(&first), texts(&encoded), "{ty:?} as {}", encoded.data_type());
            assert_eq!(fold(first.data_type()), fold(encoded.data_type()));

            let batch = RecordBatch::try_from_iter_with_nullable([("c", first.clone(), true)]).unwrap();
            let mut bytes = Vec::new();
            let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            let mut reader = ParquetRecordBatchReader::try_new(bytes::Bytes::from(bytes), 100).unwrap();
            let back = Arc::clone(reader.next().unwrap().unwrap().column(0));
            assert_eq!(texts(&first), texts(&back), "{ty:?} through Parquet");
        }
    }
}
