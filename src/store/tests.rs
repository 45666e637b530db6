//! Tests of the store at its surface.
