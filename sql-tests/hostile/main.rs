//! Hostile input: what an attacker, or a broken file, may say to this crate, and what must not come of it.
//!
//! | module | what is proven |
//! | --- | --- |
//! | `sandbox` | no attack statement gets past the handler sandbox, on any surface; each is refused before anything is written |
//! | `read_only` | without leave nothing acts and nothing gives the leave; planning leaves the store byte-identical |
//! | `files` | broken and absurd source files end in an error that names the table, in bounded time and memory |
//! | `names` | no name, run id or stored path leads out of the table's folder |
//! | `secrets` | a planted secret is found nowhere |
//! | `text` | the parser, the version clauses and the options under random mutations |
//!
//! Every test fails when anything panicked, on whatever thread.

#![allow(clippy::disallowed_methods)] // times are measured, readers run beside each other

mod files;
mod names;
mod read_only;
mod sandbox;
mod secrets;
mod text;
mod world;
