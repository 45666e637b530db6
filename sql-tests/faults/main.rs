//! Proofs against crashes, faults, races and corruption, through the public interface.

mod acts;
mod backing;
mod case;
mod clock;
mod corruption;
mod crash;
mod gate;
#[cfg(target_os = "linux")]
mod kills;
mod model;
#[cfg(target_os = "linux")]
mod order;
mod planning;
mod races;
mod scenarios;
#[cfg(target_os = "linux")]
mod shell;
mod short;
mod simulated;
mod simulation;
mod store;
mod sync;
mod world;
