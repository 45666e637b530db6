//! Proofs against crashes, faults, races and corruption, through the public interface.

mod clock;
mod crash;
mod gate;
mod model;
mod races;
mod scenarios;
mod simulated;
mod simulation;
mod store;
mod sync;
mod world;
