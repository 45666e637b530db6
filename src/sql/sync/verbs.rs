//! The verbs of synced tables: `CALL sync.<verb>(…)` and the table functions `sync_<verb>(…)`.

use crate::sql::verbs::ParamKind::{Boolean, Table, Text};
use crate::sql::verbs::{Family, Param, VerbSpec};

const TABLE: Param = Param { name: "table", kind: Table, required: true };
const ANY_TABLE: Param = Param { name: "table", kind: Table, required: false };
const CONFIRM: Param = Param { name: "confirm", kind: Boolean, required: false };
const RUN: Param = Param { name: "run", kind: Text, required: false };
const ALLOW_DELETES: Param = Param { name: "allow_deletes", kind: Boolean, required: false };

const fn verb(name: &'static str, params: &'static [Param], acts: bool, doc: &'static str) -> VerbSpec {
    VerbSpec { family: Family::Sync, name, params, acts, doc }
}

/// Every verb.
pub const SYNC_VERBS: &[VerbSpec] = &[
    verb("connections", &[], false, "every connection; secrets are shown as their references"),
    verb(
        "check",
        &[Param { name: "connection", kind: Text, required: true }],
        false,
        "tries a connection: reachable, admitted, able to read",
    ),
    verb(
        "discover",
        &[Param { name: "connection", kind: Text, required: false }],
        false,
        "the tables of a connection with columns and keys; without one the session's own",
    ),
    verb("tables", &[], false, "every synced table, as sync_schema shows it"),
    verb("schema", &[TABLE], false, "a table's configuration, state and last error"),
    verb("incremental_fields", &[TABLE], false, "reads the source again: cursor candidates, available types, detected keys, columns"),
    verb("runs", &[ANY_TABLE], false, "the synchronisations of a table, or of all, newest first"),
    verb("reload", &[TABLE, RUN, ALLOW_DELETES], true, "syncs the table now and waits for the end"),
    verb("reconcile", &[TABLE, RUN, ALLOW_DELETES], true, "compares keys and removes rows that the source deleted"),
    verb("resync", &[TABLE, CONFIRM, RUN], true, "makes a new generation beside the old one and swaps it in"),
    verb("delete_data", &[TABLE, CONFIRM], true, "deletes all rows and the mark; the configuration stays"),
    verb("cancel", &[TABLE], true, "asks the active run to stop"),
];
