//! A PostgreSQL server for tests: a fresh cluster in a temporary folder, on a free port, without the durability that a test
//! does not need.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A running server; stopped when dropped.
pub struct Server {
    folder: tempfile::TempDir,
    pub port: u16,
    process: Mutex<Option<Child>>,
}

/// The password of the role that tests connect as.
pub const PASSWORD: &str = "s3cret-p4ssword";

impl Server {
    /// Starts a server with these lines more in its configuration.
    pub fn start(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("incremental-pg-").tempdir().expect("a folder");
        give_away(folder.path());
        let password_file = folder.path().join("password");
        fs::write(&password_file, PASSWORD).expect("a password file");
        let data = folder.path().join("data");
        let made = command("initdb", &folder)
            .args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"])
            .arg(format!("--pwfile={}", password_file.display()))
            .arg("-D")
            .arg(&data)
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let fixed =
            ["listen_addresses = '127.0.0.1'", "wal_level = logical", "fsync = off", "max_connections = 60", "log_min_messages = warning"];
        let mut text = fs::read_to_string(data.join("postgresql.conf")).expect("a configuration");
        for line in fixed.iter().chain(settings) {
            text.push_str(&format!("{line}\n"));
        }
        text.push_str(&format!("port = {port}\nunix_socket_directories = '{}'\n", folder.path().display()));
        fs::write(data.join("postgresql.conf"), text).expect("a configuration");
        let server = Self { folder, port, process: Mutex::new(None) };
        server.launch();
        server
    }

    /// Starts the process and waits until it answers.
    pub fn launch(&self) {
        let log = fs::File::create(self.folder.path().join("log")).expect("a log");
        let child = command("postgres", &self.folder)
            .arg("-D")
            .arg(self.data())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("postgres starts");
        *self.process.lock().unwrap() = Some(child);
        let start = Instant::now();
        // A postmaster accepts connections before the database does; pg_isready knows the difference.
        while !self.is_ready() {
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_ready(&self) -> bool {
        let status = command("pg_isready", &self.folder).args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]).status();
        TcpStream::connect(("127.0.0.1", self.port)).is_ok() && status.is_ok_and(|status| status.success())
    }

    /// Ends the process at once, as a crash does: sessions are cut in the middle of what they do.
    pub fn kill(&self) {
        let Some(mut child) = self.process.lock().unwrap().take() else { return };
        // SIGQUIT is PostgreSQL's immediate shutdown; SIGKILL would leave its children behind.
        let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
        let _ = child.wait();
    }

    /// Adds a line to the configuration; it counts from the next launch.
    pub fn configure(&self, line: &str) {
        let file = self.data().join("postgresql.conf");
        let text = fs::read_to_string(&file).expect("a configuration");
        fs::write(file, format!("{text}{line}\n")).expect("a configuration");
    }

    /// Copies a file into the cluster's folder, readable for the server alone.
    pub fn install(&self, file: &Path) {
        let target = self.data().join(file.file_name().expect("a file"));
        fs::copy(file, &target).expect("a copy");
        fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("permissions");
        give_away(&target);
    }

    /// Where the cluster is.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The address of a database for the superuser, with these parameters (`?sslmode=…`).
    pub fn url(&self, database: &str, parameters: &str) -> String {
        format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{database}{parameters}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One of PostgreSQL's programs, run as a user that it admits.
fn command(program: &str, folder: &tempfile::TempDir) -> Command {
    let mut command = Command::new(installed(program));
    command.current_dir(folder.path()).env("LC_ALL", "C.UTF-8");
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    command
}

/// Debian keeps the server's programs out of the path, in a folder for each version.
fn installed(program: &str) -> PathBuf {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|folders| folders.filter_map(|folder| Some(folder.ok()?.path().join("bin").join(program))).collect())
        .unwrap_or_default();
    versions.retain(|path| path.exists());
    versions.sort();
    versions.pop().unwrap_or_else(|| PathBuf::from(program))
}

/// User and group to run as, where this process is root.
fn server_user() -> Option<(u32, u32)> {
    let id = |arguments: &[&str]| {
        let output = Command::new("id").args(arguments).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse::<u32>().ok()
    };
    (id(&["-u"])? == 0).then(|| {
        let of = |user| id(&["-u", user]).zip(id(&["-g", user]));
        of("postgres").or_else(|| of("nobody")).expect("a user other than root")
    })
}

fn give_away(path: &Path) {
    if let Some((user, group)) = server_user() {
        std::os::unix::fs::chown(path, Some(user), Some(group)).expect("the folder's owner changes");
    }
}
