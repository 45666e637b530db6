#!/usr/bin/env bash
# Runs every test of the repository, on a bare Debian machine with Rust.
#
#   sql-tests/run.sh            everything
#   sql-tests/run.sh sql model  only these groups
#
# Groups: format lint doc unit sql model crash races simulation corruption processes postgres other quickstart. One profile and one
# set of features serve them all, so that dependencies are compiled once (clippy adds a check pass). Every group runs even
# when an earlier one failed; the end shows the minutes of each and the exit status is 1 when one failed.
# MODEL_HISTORIES (1000) sets how many random histories the model test runs, for each of its two key hashes; SIM_SEEDS
# (500) how many seeds the simulation, CRASH_PAIRS (2000) how many pairs of faults, CORRUPTIONS (2000) how many damages, and
# KILLS (200) how many processes are killed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}" CARGO_TERM_PROGRESS_WHEN=never
target="${CARGO_TARGET_DIR:-$PWD/target}"
features=cli,postgres
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

# A C compiler is all that the dependencies need beside Rust (zstd, lzma and BLAKE3 bring their own C code); the postgres
# group starts a server of its own, for which it needs PostgreSQL's programs and makes certificates with openssl.
install() {
    local as_root=""
    [ "$(id -u)" = 0 ] || as_root="sudo"
    $as_root apt-get update -qq && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@"
}

set_up() {
    if ! command -v cc >/dev/null 2>&1; then
        install gcc libc6-dev
    fi || { echo "no C compiler, and it could not be installed: apt-get install gcc libc6-dev"; return 1; }
    if ! command -v cargo >/dev/null 2>&1 && [ -f "$HOME/.cargo/env" ]; then . "$HOME/.cargo/env"; fi
    command -v cargo >/dev/null 2>&1 || { echo "cargo was not found: install Rust 1.94 or later from https://rustup.rs"; return 1; }
    cargo --version
    local component
    for component in fmt clippy; do
        cargo "$component" --version >/dev/null 2>&1 || rustup component add "$(echo "$component" | sed s/^fmt$/rustfmt/)" || return 1
    done
    cargo fetch --locked
}

names=() minutes=() results=()
failed=0
group() {
    local name="$1" start status=0
    shift
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
    echo
    echo "=== $name"
    start=$(date +%s)
    "$@" || status=$?
    names+=("$name") minutes+=("$(awk "BEGIN { printf \"%.1f\", ($(date +%s) - $start) / 60 }")")
    if [ $status = 0 ]; then results+=(ok); else results+=(FAILED) failed=1; fi
}

cargo_test() { cargo test --locked --features "$features" "$@"; }

# The postgres connector against a real server, which the tests start and stop.
postgres_tests() {
    if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || ! command -v openssl >/dev/null 2>&1; then
        install postgresql postgresql-contrib openssl ||
            { echo "PostgreSQL could not be installed: apt-get install postgresql openssl"; return 1; }
    fi
    cargo_test --test postgres
}

# Every other integration test that Cargo.toml names.
other_tests() {
    local name status=0
    for name in $(awk '/^\[\[/ { test = ($0 == "[[test]]") } test && /^name *=/ { gsub(/^name *= *"|"$/, ""); print }' Cargo.toml); do
        case "$name" in sql | model | faults | postgres) continue ;; esac
        cargo_test --test "$name" || status=1
    done
    # Criterion's test mode: every benchmark once, without measuring.
    cargo_test --bench kernels --bench refresh || status=1
    for name in embed slow_service; do cargo run --locked --features "$features" --example "$name" || status=1; done
    return $status
}

# The README's first command with the test profile, twice over the same warehouse and once over a fresh one.
quickstart() {
    # Building a test builds the shell beside it, with the same dependencies; `cargo build` would compile them once more.
    cargo_test --test protocol --no-run || return 1
    local binary="$target/debug/incremental-cli" root="$scratch/warehouse" again
    for again in first second; do
        "$binary" --root "$root" -f examples/quickstart.sql >"$scratch/$again.txt" || { cat "$scratch/$again.txt"; return 1; }
    done
    cat "$scratch/first.txt"
    "$binary" --root "$scratch/chain" -f examples/chain.sql || return 1
    # A failing statement stops the shell with exit status 1.
    if "$binary" --root "$root" -q -c 'SELECT * FROM nosuch_table' >/dev/null 2>&1; then
        echo "a failing statement did not fail the shell"
        return 1
    fi
}

wanted=("$@")
set_up || exit 1
group format cargo fmt --all --check
group lint cargo clippy --locked --features "$features" --all-targets -- -D warnings
group unit cargo_test --lib --bins
group sql cargo_test --test sql
group model cargo_test --test model -- --nocapture
group crash cargo_test --test faults -- --nocapture crash:: sync::
group races cargo_test --test faults races:: -- --nocapture
group simulation cargo_test --test faults simulation:: -- --nocapture
group corruption cargo_test --test faults -- --nocapture corruption:: short::
group processes cargo_test --test faults -- --nocapture kills:: order:: planning::
group postgres postgres_tests
group other other_tests
group doc cargo_test --doc
group quickstart quickstart

echo
echo "=== minutes"
for i in "${!names[@]}"; do printf '%-12s %6s  %s\n' "${names[$i]}" "${minutes[$i]}" "${results[$i]}"; done
exit $failed
