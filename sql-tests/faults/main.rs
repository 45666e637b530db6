//! Proofs against crashes, faults, races and corruption, through the public interface.
//!
//! ```text
//! World (source, clock, ids) ─► Process (session) ─► FaultStore (fails as planned, waits at gates, records) ─► Backing
//! Folder (local disk)        ─► the shell: killed, limited, two at once, with a library preloaded
//! ```
//!
//! | guarantee | test | cases in CI | processor time |
//! | --- | --- | --- | --- |
//! | whole versions only; durable once acknowledged; a failed run changes nothing; the same run id has one answer; no lease outlives its 30 s; a vacuum finds every orphan | `crash::crash_matrix`: 31 scenarios; each of their 1,938 store operations fails before, is applied and fails, is never answered and its future dropped, is the last that the store answers, or ends early | 8,376 | 7.9 min, all of `crash::` |
//! | the same when two operations fail | `crash::crash_pairs`, by seed | 2,000 | with the above |
//! | the same on the local disk | `crash::crash_on_disk` | 308 | with the above |
//! | the same when the future is dropped at any await | `crash::crash_of_a_future_dropped_at_each_await`: every poll of every scenario | 3,046 | with the above |
//! | the same on a full disk | `crash::crash_of_a_full_disk`: 200 points; `kills::kills_by_a_limit_on_files_tear_nothing`: 48 limits on the size of files | 248 | with `crash::` and `kills::` |
//! | the same with several writers, readers, a vacuum and a compactor at once, clocks that jump, files that are skipped, changes that are handed on | `simulation::simulation`: 500 seeds of 40 steps against a model; the same seed gives the same trace | 20,000 steps | 4.9 min, all of `simulation::` |
//! | a run of a synced table is completed by the next one, nothing lost or doubled, whatever its mode | `sync::`: every store operation of a first load and of a later run fails, is applied and fails, is never answered, or is the last that the store answers | 1,806 | 0.7 min |
//! | one winner per version, nothing lost | `races::`: 8, 16 and 64 publishers at one slot, with late operations, and on threads; two in all 924 orders of six operations each | 924 + 180 versions on threads | 0.9 min, all of `races::` |
//! | one version per run id | `races::races_of_one_run_id_in_every_order`; `kills::kills_none_of_two_processes_that_refresh_one_table` | 924; 16 pairs | with `races::` and `kills::` |
//! | who sleeps through a vacuum publishes nothing that it deleted; a vacuum that sleeps deletes nothing in use | `races::sleepers_…` | 132 | with the above |
//! | a process that is killed, or interrupted, tears nothing, on the local disk | `kills::kills_at_random_moments_tear_nothing` | 200 | 0.7 min, all of `kills::`, `order::` and `planning::` |
//! | bytes synced, folder synced, then the slot linked, its folder synced, then the answer | `order::order_of_durable_writes`: calls written down by a preloaded library; the check finds every sync that is left out | 10 publishes | with the above |
//! | damage is an error that names its remedy, never a wrong answer, never a panic, in bounded memory | `corruption::`: metadata, indexes and vectors by default, data under `verify = 'always'`, all of them on the local disk; every bit and every length of every metadata object at the decoder (`store::damage_tests`) | 3 × 2,000 + 200 | 2.6 min, all of `corruption::` |
//! | what the default leaves unchecked is known | `corruption::corruption_of_data_by_default_is_counted`: of 500 damages 222 were errors, 4 wrong answers, the others harmless | 500 | with the above |
//! | a transfer that ends early is the store's failure | `short::a_short_read_of_a_file_is_the_stores_failure` | 144 | 0.1 min |
//! | a store that hangs stops no planner for good | `planning::` | 3 | with `kills::` |
//!
//! Processor time, user and system, of one run each on a busy machine; two free processors share it. `verify = 'always'` costs
//! the hash of each file that a scan opens: 0.03 s of processor time for 60 MB, on a scan of 0.18 s.
//!
//! Longer runs: `SIM_SEEDS=20000 cargo test --features cli --test faults simulation::simulation -- --exact --nocapture`, and
//! `KILLS=1000 cargo test --features cli --test faults -- --nocapture kills::`. A failing seed prints the command that replays it.
//! SIGKILL proves nothing about syncs, `order` does; what an object store makes durable when it acknowledges is its own promise.

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
