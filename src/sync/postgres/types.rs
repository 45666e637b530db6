//! How each PostgreSQL type is read: what the server sends and the Arrow type it becomes. Nothing is rounded or guessed.
//!
//! ```text
//! bool · int2 int4 int8 · oid · float4 float8   the same in Arrow (oid: UInt32)
//! numeric(p, s)                                 Decimal128 to 38 digits, Decimal256 to 76, else text
//! numeric                                       as measured: Decimal of what it holds, else text
//! money                                         Decimal128(21, 2), in arrays too
//! text varchar bpchar name citext enum          Utf8 (bpchar with its blanks)
//! json jsonb uuid                               Utf8, as PostgreSQL writes them
//! bytea                                         Binary
//! date · time · timestamp · timestamptz         Date32 · Time64(µs) · Timestamp(µs) · Timestamp(µs, UTC)
//! timetz interval and everything else           Utf8, by PostgreSQL's own cast to text
//! domain                                        as its base type
//! array                                         List of the above; declared with two or more dimensions: Utf8
//! ```
//!
//! An array keeps its elements, nulls among them, and not its lower bound; a value of two dimensions in a column that
//! declares one is VALUE_OUT_OF_RANGE. PostgreSQL does not have intervals of one unit and Parquet does not have Arrow's of
//! three, so they are text (`1 year 2 mons 3 days 04:05:06.7`), which casts to INTERVAL in a query.

use std::collections::HashMap;

use super::copy::{ValueKind, WIDEST_DECIMAL};

/// The schema of everything that is PostgreSQL's own.
pub(super) const PG_CATALOG: &str = "pg_catalog";

/// A row of `pg_type`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PgType {
    /// Its schema and name.
    pub schema: String,
    pub name: String,
    /// `typtype`: `b`ase, `c`omposite, `d`omain, `e`num, `r`ange, `m`ultirange, `p`seudo.
    pub class: char,
    /// Whether it is an array.
    pub is_array: bool,
    /// The element type of an array.
    pub element: u32,
    /// The base of a domain, and the modifier and dimensions that it gives it.
    pub base: u32,
    pub modifier: i32,
    pub dimensions: i32,
    /// The type without a modifier, as a cast writes it.
    pub cast_name: String,
}

/// How a column is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Select {
    /// As it is.
    Plain,
    /// Cast to `text`.
    Text,
    /// An array, its elements cast to `text`.
    TextArray,
    /// `money`, which has no other exact way out.
    Numeric,
    /// An array of `money`.
    NumericArray,
}

/// How values are put in an order that is the same on every server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The type's own.
    Own,
    /// Text, byte by byte: a collation may change with the server's libraries, and equal texts may differ.
    Bytes,
    /// Text of a type with comparisons of its own, byte by byte.
    CastToText,
}

/// A column's type, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ColumnType {
    pub kind: ValueKind,
    pub select: Select,
    pub order: Order,
    /// What a literal is cast to.
    pub cast_name: String,
    /// The schema of the type's comparisons: an extension has them beside its types, everything else is compared by PostgreSQL.
    pub operators: String,
    /// Whether the column is of a domain: not every operator of the base takes one.
    pub is_domain: bool,
    /// A `numeric` without a declared scale: text unless it is measured.
    pub is_open_numeric: bool,
}

impl ColumnType {
    fn new(found: &PgType, kind: ValueKind, select: Select) -> Self {
        let cast_name = found.cast_name.clone();
        let operators = if found.class == 'b' && !found.is_array { found.schema.clone() } else { PG_CATALOG.to_string() };
        Self { kind, select, order: Order::Own, cast_name, operators, is_domain: false, is_open_numeric: false }
    }
}

/// Resolves types by what `pg_type` says of them.
pub(super) type Types = HashMap<u32, PgType>;

/// Domains over domains end somewhere; a catalogue that says otherwise is not followed.
const DEEPEST_DOMAIN: usize = 32;

/// How a column of type `oid` with this modifier and these declared dimensions is read; `Err` says why it cannot be.
pub(super) fn resolve(types: &Types, mut oid: u32, mut modifier: i32, mut dimensions: i32) -> Result<ColumnType, String> {
    for depth in 0..DEEPEST_DOMAIN {
        let Some(found) = types.get(&oid) else { return Err("its type is not in the catalogue".into()) };
        let column = |ty: ColumnType| Ok(ColumnType { is_domain: depth > 0, ..ty });
        match found.class {
            'd' => {
                modifier = if found.modifier >= 0 { found.modifier } else { modifier };
                dimensions = dimensions.max(found.dimensions);
                oid = found.base;
            }
            'p' => return Err(format!("it is of the pseudo-type {}", found.name)),
            _ if found.is_array => return column(array(types, found, modifier, dimensions)),
            _ => return column(scalar(found, modifier)),
        }
    }
    Err("its type is a domain without a base".into())
}

fn array(types: &Types, found: &PgType, modifier: i32, dimensions: i32) -> ColumnType {
    let column = |kind, select| ColumnType::new(found, kind, select);
    if dimensions > 1 {
        return column(ValueKind::Text, Select::Text);
    }
    match resolve(types, found.element, modifier, 0) {
        Ok(element) if element.select == Select::Numeric => column(ValueKind::List(Box::new(element.kind)), Select::NumericArray),
        // The elements of a domain are sent as its base; what needs a cast is cast element by element.
        Ok(element) if element.select == Select::Plain && !element.is_open_numeric => {
            column(ValueKind::List(Box::new(element.kind)), Select::Plain)
        }
        _ => column(ValueKind::List(Box::new(ValueKind::Text)), Select::TextArray),
    }
}

fn scalar(found: &PgType, modifier: i32) -> ColumnType {
    let column = |kind, select, order| ColumnType { order, ..ColumnType::new(found, kind, select) };
    let plain = |kind| column(kind, Select::Plain, Order::Own);
    if found.class == 'e' {
        return plain(ValueKind::Text);
    }
    if found.schema != PG_CATALOG {
        let order = if found.name == "citext" { Order::CastToText } else { Order::Own };
        return column(ValueKind::Text, Select::Text, order);
    }
    match found.name.as_str() {
        "bool" => plain(ValueKind::Bool),
        "int2" => plain(ValueKind::Int16),
        "int4" => plain(ValueKind::Int32),
        "int8" => plain(ValueKind::Int64),
        "oid" => plain(ValueKind::Oid),
        "float4" => plain(ValueKind::Float32),
        "float8" => plain(ValueKind::Float64),
        "numeric" => numeric(modifier, found),
        "money" => column(ValueKind::Decimal(21, 2), Select::Numeric, Order::Own),
        "text" | "varchar" | "bpchar" => column(ValueKind::Text, Select::Plain, Order::Bytes),
        "json" | "name" => plain(ValueKind::Text),
        "jsonb" => plain(ValueKind::Jsonb),
        "uuid" => plain(ValueKind::Uuid),
        "bytea" => plain(ValueKind::Bytes),
        "date" => plain(ValueKind::Date),
        "time" => plain(ValueKind::Time),
        "timestamp" => plain(ValueKind::Timestamp),
        "timestamptz" => plain(ValueKind::TimestampUtc),
        _ => column(ValueKind::Text, Select::Text, Order::Own),
    }
}

/// `numeric` by its declaration. Since PostgreSQL 15 the scale may be negative or exceed the precision.
fn numeric(modifier: i32, found: &PgType) -> ColumnType {
    let column = |kind, select, is_open_numeric| ColumnType { is_open_numeric, ..ColumnType::new(found, kind, select) };
    if modifier < 4 {
        return column(ValueKind::Text, Select::Text, true);
    }
    let packed = modifier - 4;
    let precision = (packed >> 16) & 0xffff;
    let scale = ((packed & 0x7ff) ^ 1024) - 1024;
    let (digits, scale) = if scale < 0 { (precision - scale, 0) } else { (precision.max(scale), scale) };
    match decimal(i64::from(digits), i64::from(scale)) {
        Some(kind) => column(kind, Select::Plain, false),
        None => column(ValueKind::Text, Select::Text, false),
    }
}

/// The decimal of this many digits, `scale` of them behind the point, if there is one.
pub(super) fn decimal(digits: i64, scale: i64) -> Option<ValueKind> {
    let precision = u8::try_from(digits.max(1)).ok().filter(|p| *p <= WIDEST_DECIMAL)?;
    let scale = u8::try_from(scale).ok().filter(|s| *s <= precision)?;
    Some(ValueKind::Decimal(precision, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(name: &str) -> PgType {
        PgType {
            schema: "pg_catalog".into(),
            name: name.into(),
            class: 'b',
            is_array: false,
            element: 0,
            base: 0,
            modifier: -1,
            dimensions: 0,
            cast_name: name.into(),
        }
    }

    fn types() -> Types {
        let array_of = |element| PgType { is_array: true, element, ..base("_x") };
        let domain = |base_oid, modifier| PgType { class: 'd', schema: "public".into(), base: base_oid, modifier, ..base("d") };
        HashMap::from([
            (1, base("numeric")),
            (2, array_of(1)),
            (3, domain(1, modifier(10, 2))),
            (4, domain(3, -1)),
            (5, array_of(4)),
            (6, base("inet")),
            (7, array_of(6)),
            (8, domain(8, -1)),
        ])
    }

    fn modifier(precision: i32, scale: i32) -> i32 {
        ((precision << 16) | (scale & 0x7ff)) + 4
    }

    fn kind(oid: u32, modifier: i32, dimensions: i32) -> ValueKind {
        resolve(&types(), oid, modifier, dimensions).unwrap().kind
    }

    #[test]
    fn declared_numerics_are_decimals_that_hold_every_value() {
        assert_eq!(kind(1, modifier(10, 2), 0), ValueKind::Decimal(10, 2));
        assert_eq!(kind(1, modifier(3, -2), 0), ValueKind::Decimal(5, 0));
        assert_eq!(kind(1, modifier(3, 5), 0), ValueKind::Decimal(5, 5));
        assert_eq!(kind(1, modifier(76, 38), 0), ValueKind::Decimal(76, 38));
        assert_eq!(kind(1, modifier(77, 0), 0), ValueKind::Text);
        assert!(resolve(&types(), 1, -1, 0).unwrap().is_open_numeric);
        assert!(!resolve(&types(), 1, modifier(1000, 0), 0).unwrap().is_open_numeric);
    }

    #[test]
    fn domains_are_read_as_their_base_in_arrays_too() {
        assert_eq!(kind(4, -1, 0), ValueKind::Decimal(10, 2));
        assert_eq!(kind(5, -1, 1), ValueKind::List(Box::new(ValueKind::Decimal(10, 2))));
        assert_eq!(kind(5, -1, 2), ValueKind::Text);
        assert!(resolve(&types(), 8, -1, 0).is_err());
        assert!(resolve(&types(), 99, -1, 0).is_err());
    }

    #[test]
    fn elements_that_need_a_cast_are_cast_one_by_one() {
        for oid in [2, 7] {
            let column = resolve(&types(), oid, -1, 1).unwrap();
            assert_eq!((column.kind, column.select), (ValueKind::List(Box::new(ValueKind::Text)), Select::TextArray));
        }
    }
}
