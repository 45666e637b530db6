use std::collections::BTreeMap;

use arrow_schema::DataType;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use roaring::RoaringTreemap;

use super::*;
use crate::error::{Error, ErrorCode};
use crate::store::dead::apply_dead;
use crate::store::files::PairWriter;
use crate::store::files::test_support::{config, incarnation, int64, output_rows, pair_spec, reservation};

async fn pair(inc: &Incarnation, version: u64, rows: std::ops::Range<i64>) -> DataFile {
    let mut writer = PairWriter::new(pair_spec(inc, version, config()), format!("f{version}"), reservation(64 << 20).1).unwrap();
    writer.write(&output_rows(rows.start, rows.end)).await.unwrap();
    writer.finish().await.unwrap().remove(0)
}

async fn without(inc: &Incarnation, file: &DataFile, dir: &str, dead: impl IntoIterator<Item = u64>) -> DataFile {
    let dead = BTreeMap::from([(0, dead.into_iter().collect::<RoaringTreemap>())]);
    apply_dead(inc, dir, std::slice::from_ref(file), &dead).await.unwrap().remove(0)
}

async fn keys(inc: &Incarnation, files: Vec<KeyFile>) -> Result<Vec<i64>, ErrorCode> {
    let scan = KeyScanExec::new(inc.clone(), files, &[Field::new("id", DataType::Int64, true)]);
    let batches = collect(Arc::new(scan), SessionContext::new().task_ctx()).await.map_err(|e| Error::find(&e).unwrap().code())?;
    let mut keys: Vec<i64> = batches.iter().flat_map(|batch| int64(batch, "id").values().to_vec()).collect();
    keys.sort_unstable();
    Ok(keys)
}

fn of(file: &DataFile, rows: ChosenRows) -> KeyFile {
    KeyFile { file: file.clone(), rows }
}

#[tokio::test]
async fn exactly_the_chosen_rows_are_read() {
    let inc = incarnation().await;
    let (old, new) = (pair(&inc, 1, 0..200_000).await, pair(&inc, 2, 300_000..300_010).await);
    let once = without(&inc, &old, "data/r/2", [3, 70_000]).await;
    let twice = without(&inc, &once, "data/r/3", [4, 199_999]).await;
    let new = without(&inc, &new, "data/r/3", [0]).await;

    let written = |version| vec![of(&once, ChosenRows::WrittenAfter(version)), of(&new, ChosenRows::WrittenAfter(version))];
    assert_eq!(keys(&inc, written(1)).await.unwrap(), (300_001..300_010).collect::<Vec<_>>());
    assert_eq!(keys(&inc, written(2)).await.unwrap(), vec![0; 0]);
    assert_eq!(keys(&inc, written(0)).await.unwrap().len(), 200_000 - 2 + 9);

    let died = |from: &DataFile, to: Option<&DataFile>| vec![of(from, ChosenRows::DeadIn(to.cloned().map(Box::new)))];
    assert_eq!(keys(&inc, died(&old, Some(&twice))).await.unwrap(), [3, 4, 70_000, 199_999]);
    assert_eq!(keys(&inc, died(&once, Some(&twice))).await.unwrap(), [4, 199_999]);
    assert_eq!(keys(&inc, died(&new, None)).await.unwrap(), (300_001..300_010).collect::<Vec<_>>());
    assert_eq!(keys(&inc, vec![]).await.unwrap(), vec![0; 0]);
}

#[tokio::test]
async fn a_lost_index_file_is_told() {
    let inc = incarnation().await;
    let mut file = pair(&inc, 1, 0..10).await;
    file.index.hash = "0".repeat(64);
    assert_eq!(keys(&inc, vec![of(&file, ChosenRows::DeadIn(None))]).await, Err(ErrorCode::Corrupt));
    file.index.path.push_str(".gone");
    assert_eq!(keys(&inc, vec![of(&file, ChosenRows::DeadIn(None))]).await, Err(ErrorCode::HistoryMissing));
}
