//! Where the daemon's socket is.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The environment variable that overrides everything else.
pub const SOCKET_VARIABLE: &str = "GPREEMPT_SOCKET";
/// Where root's daemon listens.
pub const SYSTEM_SOCKET: &str = "/run/gpreempt/gpreemptd.sock";

/// What decides about the place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether this process is root's.
    pub is_root: bool,
    /// The value of `GPREEMPT_SOCKET`.
    pub socket: Option<OsString>,
    /// The value of `XDG_RUNTIME_DIR`: the user's own folder for such things.
    pub runtime_folder: Option<OsString>,
}

impl Surroundings {
    /// Those of this process.
    pub fn current() -> Self {
        let value = |name| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            is_root: rustix::process::geteuid().is_root(),
            socket: value(SOCKET_VARIABLE),
            runtime_folder: value("XDG_RUNTIME_DIR"),
        }
    }

    /// Where a daemon of this user listens. Nothing if the user has no place for it.
    pub fn listen_path(&self) -> Option<PathBuf> {
        match &self.socket {
            Some(path) => Some(path.into()),
            None if self.is_root => Some(SYSTEM_SOCKET.into()),
            None => self.user_path(),
        }
    }

    /// Where a client of this user looks for a daemon: its own first, then root's. Root never
    /// follows a user's environment into that user's folder.
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
    fn root_and_users_have_their_places_and_the_variable_overrides_them() {
        let mut user =
            Surroundings { runtime_folder: Some("/run/user/7".into()), ..Surroundings::default() };
        let own = PathBuf::from("/run/user/7/gpreempt/gpreemptd.sock");
        assert_eq!(user.listen_path(), Some(own.clone()));
        assert_eq!(user.connect_paths(), [own, SYSTEM_SOCKET.into()]);
        let root = Surroundings { is_root: true, ..user.clone() };
        assert_eq!(root.listen_path(), Some(SYSTEM_SOCKET.into()));
        assert_eq!(root.connect_paths(), [PathBuf::from(SYSTEM_SOCKET)]);
        user.socket = Some("/tmp/x.sock".into());
        assert_eq!(user.listen_path(), Some("/tmp/x.sock".into()));
        assert_eq!(user.connect_paths(), [PathBuf::from("/tmp/x.sock")]);
        let homeless = Surroundings::default();
        assert_eq!(homeless.listen_path(), None);
        assert_eq!(homeless.connect_paths(), [PathBuf::from(SYSTEM_SOCKET)]);
    }
}
