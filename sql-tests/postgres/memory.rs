//! Wide rows: what is buffered is bounded, and reserved.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_incremental::{Error, ErrorCode};
use futures::{StreamExt, TryStreamExt};

use crate::Test;
use crate::world::{World, everything, name, values};

pub const TESTS: &[Test] = &[
    ("wide_rows_come_one_by_one", wide_rows_come_one_by_one),
    ("a_row_beyond_the_pool_is_refused", a_row_beyond_the_pool_is_refused),
    ("large_rows_wait_for_their_reader", large_rows_wait_for_their_reader),
    ("reading_reserves_what_it_holds_and_gives_it_back", reading_reserves_what_it_holds_and_gives_it_back),
];

fn context(bytes: usize) -> Arc<TaskContext> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes))).build_arc().unwrap();
    SessionContext::new_with_config_rt(SessionConfig::new(), runtime).task_ctx()
}

fn wide_rows_come_one_by_one(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v text, b bytea); INSERT INTO t SELECT i, repeat(chr(96 + i), 20000000), decode(repeat('0a', 1000000), 'hex') FROM generate_series(1, 4) i");
    let snapshot = world.snapshot("t");
    let batches = world.batches(&snapshot, everything(&snapshot, &["id"])).unwrap();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).collect::<Vec<_>>(), [1; 4]);
    for (id, value) in values(&batches, 1).iter().enumerate() {
        let text = value.try_as_str().unwrap().unwrap();
        assert!(text.len() == 20_000_000 && text.bytes().all(|byte| usize::from(byte) == 97 + id));
    }
}

fn a_row_beyond_the_pool_is_refused(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, repeat('x', 30000000))");
    let snapshot = world.runtime.block_on(world.connector().snapshot(&name("t"), None, context(10 << 20))).unwrap();
    let error = world.batches(&snapshot, everything(&snapshot, &[])).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ResourcesExhausted, "{error}");
    assert!(error.message().contains("public.t"), "{error}");
}

fn large_rows_wait_for_their_reader(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, repeat('x', 20000000) FROM generate_series(1, 6) i");
    let context = context(70 << 20);
    let snapshot = world.runtime.block_on(world.connector().snapshot(&name("t"), None, Arc::clone(&context))).unwrap();
    let mut stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &["id"]))).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    // One is ready, and no other is decoded before it is taken.
    let reserved = context.memory_pool().reserved();
    assert!((20_000_000..30_000_000).contains(&reserved), "{reserved}");
    let mut rows = 0;
    while let Some(batch) = world.runtime.block_on(stream.try_next()).map_err(|e| Error::find(&e)).unwrap() {
        rows += batch.num_rows();
        assert!(batch.get_array_memory_size() < 21_000_000, "a value has the room that it needs");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(context.memory_pool().reserved() <= 70 << 20);
    }
    assert_eq!((rows, context.memory_pool().reserved()), (6, 0));
}

fn reading_reserves_what_it_holds_and_gives_it_back(world: &World) {
    world.sql("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 50000) i");
    let context = context(12 << 20);
    let snapshot = world.runtime.block_on(world.connector().snapshot(&name("t"), None, Arc::clone(&context))).unwrap();
    let mut stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &["id"]))).unwrap();
    let mut rows = 0;
    while let Some(batch) = world.runtime.block_on(stream.try_next()).map_err(|e| Error::find(&e)).unwrap() {
        rows += batch.num_rows();
        // What the reader was given is still reserved, and what comes next waits where the pool has no room for both.
        let reserved = context.memory_pool().reserved();
        assert!(reserved >= batch.get_array_memory_size() && reserved <= 12 << 20, "{reserved}");
    }
    assert_eq!(rows, 50_000);
    assert_eq!(context.memory_pool().reserved(), 0);
    // Nobody reads: the server waits, and so does the memory.
    let stream = world.runtime.block_on(snapshot.read(everything(&snapshot, &["id"]))).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(context.memory_pool().reserved() <= 12 << 20);
    assert!(world.runtime.block_on(stream.map(|batch| batch.unwrap().num_rows()).collect::<Vec<_>>()).iter().sum::<usize>() == 50_000);
}
