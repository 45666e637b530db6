//! Physical operators, one folder each.
