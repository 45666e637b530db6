//! The connections of a root folder.
//!
//! ```text
//! <root>/.connections/<name>/1.json   created: type and options; what may be secret is a reference (env:NAME, file:PATH)
//!                            2.json   dropped
//! ```
//!
//! A name is a log of its own, so two processes that create it at once find out. Memory: one entry per connection. A
//! secret never gets here.

use std::collections::BTreeMap;

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::log::Log;
use super::objects::Objects;
use super::paths;
use crate::env::{Env, Location};
use crate::error::{Error, ErrorCode, Result};
use crate::spec::encode_name;

/// The folder, under the root.
const FOLDER: &str = ".connections";

/// A connection as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionEntry {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Its options as they were written.
    pub options: BTreeMap<String, String>,
    /// Microseconds since 1970.
    pub created_at: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Created(ConnectionEntry),
    Dropped,
}

/// The connections under one root folder.
#[derive(Debug, Clone)]
pub struct ConnectionStore {
    objects: Objects,
    root: Path,
}

impl ConnectionStore {
    /// The connections under `root`. Reads and writes nothing yet.
    pub fn new(env: Env, root: &Location) -> Self {
        let label = format!("the connections under {:?}", root.display()).into();
        let folder = root.root.clone().join(FOLDER);
        Self { objects: Objects { env, store: std::sync::Arc::clone(&root.store), label }, root: folder }
    }

    /// Whether a folder under the root is the connections' own, and no table's.
    pub fn is_folder(folder: &Path) -> bool {
        folder.filename() == Some(FOLDER)
    }

    fn log(&self, name: &str) -> Log {
        Log::guarded(self.objects.clone(), paths::below(&self.root, &encode_name(name)))
    }

    /// The connection of this name.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn get(&self, name: &str) -> Result<Option<ConnectionEntry>> {
        let log = self.log(name);
        match log.newest().await? {
            0 => Ok(None),
            newest => match log.entry::<Record>(newest).await?.0 {
                Record::Created(entry) => Ok(Some(entry)),
                Record::Dropped => Ok(None),
            },
        }
    }

    /// Every connection, in name order.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn list(&self) -> Result<Vec<ConnectionEntry>> {
        let listed = match self.objects.store.list_with_delimiter(Some(&self.root)).await {
            Ok(listed) => listed,
            Err(object_store::Error::NotFound { .. }) => return Ok(vec![]),
            Err(error) => return Err(self.objects.failed("listing", &self.root, error)),
        };
        let mut found = vec![];
        for folder in listed.common_prefixes {
            let log = Log::guarded(self.objects.clone(), folder);
            let newest = log.newest().await?;
            if newest > 0
                && let Record::Created(entry) = log.entry::<Record>(newest).await?.0
            {
                found.push(entry);
            }
        }
        found.sort_by(|a: &ConnectionEntry, b| a.name.cmp(&b.name));
        Ok(found)
    }

    /// Stores a new connection.
    ///
    /// # Errors
    /// `CONNECTION_IN_USE` when the name is taken.
    pub async fn create(&self, entry: ConnectionEntry) -> Result<()> {
        let taken = |name: &str| {
            Error::new(
                ErrorCode::ConnectionInUse,
                format!("connection {name:?} exists. Remedy: DROP CONNECTION {name} first, or choose another name"),
            )
        };
        let name = entry.name.clone();
        let (newest, known) = self.newest(&name).await?;
        if known.is_some() {
            return Err(taken(&name));
        }
        self.append(&name, newest, Record::Created(entry)).await?.map_or(Ok(()), |_| Err(taken(&name)))
    }

    /// Forgets a connection. Whether it was there.
    ///
    /// # Errors
    /// `STORE_FAILED`, `CORRUPT`.
    pub async fn drop_connection(&self, name: &str) -> Result<bool> {
        let (newest, known) = self.newest(name).await?;
        if known.is_none() {
            return Ok(false);
        }
        Ok(self.append(name, newest, Record::Dropped).await?.is_none())
    }

    /// The number of the newest record, and the connection if that record says that it exists.
    async fn newest(&self, name: &str) -> Result<(u64, Option<ConnectionEntry>)> {
        let log = self.log(name);
        let newest = log.newest().await?;
        if newest == 0 {
            return Ok((0, None));
        }
        match log.entry::<Record>(newest).await?.0 {
            Record::Created(entry) => Ok((newest, Some(entry))),
            Record::Dropped => Ok((newest, None)),
        }
    }

    /// Appends `record` right after record number `newest`, on which it was decided; `Some`: another process was faster.
    async fn append(&self, name: &str, newest: u64, record: Record) -> Result<Option<Record>> {
        self.log(name).append_known(newest + 1, &self.objects.env.ids.id()?, &record).await
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::runtime_env::RuntimeEnv;

    use super::*;

    #[tokio::test]
    async fn connections_are_found_by_the_next_process_and_names_are_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let root = Location::resolve(folder.path().to_str().unwrap(), &RuntimeEnv::default()).unwrap();
        let open = || ConnectionStore::new(Env::default(), &root);
        let options = BTreeMap::from([("url".to_string(), "env:PG_URL".to_string())]);
        let entry = |name: &str| ConnectionEntry { name: name.into(), kind: "postgres".into(), options: options.clone(), created_at: 1 };
        assert!(open().list().await.unwrap().is_empty());
        open().create(entry("pg")).await.unwrap();
        open().create(entry("A b")).await.unwrap();
        assert_eq!(open().create(entry("pg")).await.map_err(|e| e.code()), Err(ErrorCode::ConnectionInUse));
        assert_eq!(open().list().await.unwrap().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["A b", "pg"]);
        assert!(open().drop_connection("pg").await.unwrap());
        assert!(!open().drop_connection("pg").await.unwrap());
        assert_eq!(open().get("pg").await.unwrap(), None);
        open().create(entry("pg")).await.unwrap();
        assert_eq!(open().get("pg").await.unwrap(), Some(entry("pg")));
    }
}
