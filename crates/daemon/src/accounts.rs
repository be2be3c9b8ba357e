//! Users and groups by name, from `/etc/passwd` and `/etc/group`.
//!
//! The C library would load the machine's name services into a process that runs as root, so the
//! files are read directly. Users that only a directory server knows have no name here; rules
//! refer to them by number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Members of this group may raise their own processes above 7.
pub const RAISING_GROUP: &str = "gpreempt";

/// More of a file is not read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Whether a user may raise processes above 7, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayRaise {
    Root,
    /// A member of [`RAISING_GROUP`].
    GroupMember,
    No,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounts {
    uids: BTreeMap<String, u32>,
    /// The first name of each user.
    names: BTreeMap<u32, String>,
    raising_gid: Option<u32>,
    raising_members: BTreeSet<String>,
}

impl Accounts {
    /// Reads the two files of this machine; one that is not there is empty.
    ///
    /// # Errors
    /// If a file is there and cannot be read; the error names it.
    pub fn load() -> io::Result<Self> {
        let passwd = read(Path::new("/etc/passwd"))?;
        let group = read(Path::new("/etc/group"))?;
        Ok(Self::parse(&passwd, &group))
    }

    /// Reads `passwd(5)` and `group(5)`. Invalid lines are skipped, as by every other reader.
    pub fn parse(passwd: &[u8], group: &[u8]) -> Self {
        let mut accounts = Self::default();
        for line in String::from_utf8_lossy(passwd).lines() {
            let mut fields = line.split(':');
            let name = fields.next().unwrap_or_default();
            let Some(uid) = fields.nth(1).and_then(|uid| uid.parse().ok()) else { continue };
            if name.is_empty() {
                continue;
            }
            accounts.uids.entry(name.to_owned()).or_insert(uid);
            accounts.names.entry(uid).or_insert_with(|| name.to_owned());
        }
        for line in String::from_utf8_lossy(group).lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let [RAISING_GROUP, _, gid, members] = fields[..] else { continue };
            accounts.raising_gid = accounts.raising_gid.or_else(|| gid.parse().ok());
            let members = members.split(',').map(str::trim).filter(|name| !name.is_empty());
            accounts.raising_members.extend(members.map(str::to_owned));
        }
        accounts
    }

    pub fn uid(&self, name: &str) -> Option<u32> {
        self.uids.get(name).copied()
    }

    pub fn name(&self, uid: u32) -> Option<&str> {
        self.names.get(&uid).map(String::as_str)
    }

    /// Whether a user may raise processes above 7. `gids` are the groups of a process or of a
    /// socket's peer; a membership in the file counts as well. An unknown user may not.
    pub fn may_raise(&self, uid: Option<u32>, gids: &[u32]) -> MayRaise {
        if uid == Some(0) {
            return MayRaise::Root;
        }
        let in_group = self.raising_gid.is_some_and(|gid| gids.contains(&gid));
        let listed = |name: &String| uid.is_some() && self.uid(name) == uid;
        if uid.is_some() && (in_group || self.raising_members.iter().any(listed)) {
            MayRaise::GroupMember
        } else {
            MayRaise::No
        }
    }
}

/// The groups of a user, as at a login: the first one is the primary group. None for a user that
/// the files do not have.
pub fn groups_of(uid: u32) -> io::Result<Option<Vec<u32>>> {
    let passwd = read(Path::new("/etc/passwd"))?;
    let group = read(Path::new("/etc/group"))?;
    Ok(parse_groups_of(uid, &String::from_utf8_lossy(&passwd), &String::from_utf8_lossy(&group)))
}

fn parse_groups_of(uid: u32, passwd: &str, group: &str) -> Option<Vec<u32>> {
    let (name, primary) = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, number, gid, ..] = fields[..] else { return None };
        (number.parse() == Ok(uid)).then_some((name, gid.parse().ok()?))
    })?;
    let others = group.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members] = fields[..] else { return None };
        let gid = gid.parse().ok().filter(|gid| *gid != primary)?;
        members.split(',').any(|member| member.trim() == name).then_some(gid)
    });
    Some([primary].into_iter().chain(others).collect())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/:/bin/sh\n\
        alice:x:1000:1000:Alice,,,:/srv/alice:/bin/bash\n\
        alias:x:1000:1000::/:/bin/sh\n\
        # a comment\n\
        broken:x:many:1:::\n\
        :x:7:7:::\n\
        bob:x:1001:1001::/:/bin/sh\n";
    const GROUP: &[u8] = b"root:x:0:\nusers:x:100:alice,bob\ngpreempt:x:990:bob, nobody\nshort:x\n";

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!(accounts.uid("alice"), Some(1000));
        assert_eq!(accounts.uid("alias"), Some(1000));
        assert_eq!(accounts.name(1000), Some("alice"));
        assert_eq!(accounts.uid("broken"), None);
        assert_eq!(accounts.name(7), None);
    }

    #[test]
    fn a_user_has_its_primary_group_and_those_that_list_it() {
        let parse = |uid| {
            parse_groups_of(uid, &String::from_utf8_lossy(PASSWD), &String::from_utf8_lossy(GROUP))
        };
        assert_eq!(parse(1001), Some(vec![1001, 100, 990]));
        assert_eq!(parse(0), Some(vec![0]));
        assert_eq!(parse(4242), None);
    }

    #[test]
    fn only_root_and_members_of_the_group_may_raise() {
        let accounts = Accounts::parse(PASSWD, GROUP);
        assert_eq!(accounts.may_raise(Some(0), &[]), MayRaise::Root);
        assert_eq!(accounts.may_raise(Some(1000), &[100]), MayRaise::No);
        assert_eq!(accounts.may_raise(Some(1000), &[100, 990]), MayRaise::GroupMember);
        // Bob was made a member after his process started.
        assert_eq!(accounts.may_raise(Some(1001), &[100]), MayRaise::GroupMember);
        // "nobody" is a member, but there is no such user: an unknown user is not it.
        assert_eq!(accounts.may_raise(None, &[990]), MayRaise::No);
        assert_eq!(accounts.may_raise(Some(4242), &[]), MayRaise::No);
    }

    #[test]
    fn without_the_group_only_root_may_raise() {
        let accounts = Accounts::parse(PASSWD, b"");
        assert_eq!(accounts.may_raise(Some(1001), &[0, 990]), MayRaise::No);
        assert_eq!(accounts.may_raise(Some(0), &[]), MayRaise::Root);
    }

    #[test]
    fn this_machine_knows_root() {
        assert_eq!(Accounts::load().unwrap().uid("root"), Some(0));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(passwd: Vec<u8>, group: Vec<u8>) {
            let _ = Accounts::parse(&passwd, &group);
        }
    }
}
