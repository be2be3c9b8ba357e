//! The path of the daemon's socket.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that overrides the default paths.
pub const SOCKET_VARIABLE: &str = "GPREEMPT_SOCKET";
/// The socket of root's daemon.
pub const SYSTEM_SOCKET: &str = "/run/gpreempt/gpreemptd.sock";

/// The socket beside `path` to which only root can connect, so that no other user can fill its
/// backlog.
pub fn root_path(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".root");
    path.into()
}

/// The properties of a process that determine the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketEnv {
    /// Whether this process is root's.
    pub is_root: bool,
    /// The value of `GPREEMPT_SOCKET`.
    pub socket: Option<OsString>,
    /// The value of `XDG_RUNTIME_DIR`: the user's folder for sockets.
    pub runtime_folder: Option<OsString>,
}

impl SocketEnv {
    /// The properties of this process.
    pub fn current() -> Self {
        let value = |name| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            is_root: rustix::process::geteuid().is_root(),
            socket: value(SOCKET_VARIABLE),
            runtime_folder: value("XDG_RUNTIME_DIR"),
        }
    }

    /// The path at which a daemon of this user listens. None if the user has no runtime folder.
    pub fn listen_path(&self) -> Option<PathBuf> {
        match &self.socket {
            Some(path) => Some(path.into()),
            None if self.is_root => Some(SYSTEM_SOCKET.into()),
            None => self.user_path(),
        }
    }

    /// The paths at which a client of this user looks for a daemon: its own first, then root's.
    /// Root never uses the folder of a user.
    pub fn connect_paths(&self) -> Vec<PathBuf> {
        match &self.socket {
            Some(path) => vec![path.into()],
            None if self.is_root => vec![SYSTEM_SOCKET.into()],
            None => self.user_path().into_iter().chain([SYSTEM_SOCKET.into()]).collect(),
        }
    }

    fn user_path(&self) -> Option<PathBuf> {
        let folder = self.runtime_folder.as_ref()?;
        Some(PathBuf::from(folder).join("gpreempt/gpreemptd.sock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_for_root_is_beside_the_one_for_all() {
        let path = root_path(Path::new(SYSTEM_SOCKET));
        assert_eq!(path, Path::new("/run/gpreempt/gpreemptd.sock.root"));
    }

    #[test]
    fn root_and_users_have_their_paths_and_the_variable_overrides_them() {
        let mut user =
            SocketEnv { runtime_folder: Some("/run/user/7".into()), ..SocketEnv::default() };
        let own = PathBuf::from("/run/user/7/gpreempt/gpreemptd.sock");
        assert_eq!(user.listen_path(), Some(own.clone()));
        assert_eq!(user.connect_paths(), [own, SYSTEM_SOCKET.into()]);
        let root = SocketEnv { is_root: true, ..user.clone() };
        assert_eq!(root.listen_path(), Some(SYSTEM_SOCKET.into()));
        assert_eq!(root.connect_paths(), [PathBuf::from(SYSTEM_SOCKET)]);
        user.socket = Some("/tmp/x.sock".into());
        assert_eq!(user.listen_path(), Some("/tmp/x.sock".into()));
        assert_eq!(user.connect_paths(), [PathBuf::from("/tmp/x.sock")]);
        let without_folder = SocketEnv::default();
        assert_eq!(without_folder.listen_path(), None);
        assert_eq!(without_folder.connect_paths(), [PathBuf::from(SYSTEM_SOCKET)]);
    }
}
