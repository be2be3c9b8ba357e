//! A program in C: compiled, linked with the library, run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gpreempt_stage::WorkFolder;

use crate::scheduled_load::ScheduledLoad;

/// What must not be wrong with any program that uses the header.
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"];

/// Where the files of this crate are.
pub(crate) fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The library that this test was built with.
pub(crate) fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libgpreempt.so");
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A compiled program.
pub(crate) struct Program {
    path: PathBuf,
    folder: WorkFolder,
}

/// Compiles a file of this crate.
pub(crate) fn compile(source: &str) -> Program {
    compile_with("cc", "c11", &[], source)
}

/// Compiles a file of this crate as a certain language.
pub(crate) fn compile_with(compiler: &str, standard: &str, more: &[&str], source: &str) -> Program {
    let folder = WorkFolder::new("agent-program").unwrap();
    let path = folder.path("program");
    let library = library();
    let libraries = library.parent().unwrap();
    // Beside another library of the same name, it must be this one.
    let search = format!("-Wl,-rpath,{}", libraries.display());
    let output = Command::new(compiler)
        .arg(format!("-std={standard}"))
        .args(STRICT)
        .args(more)
        .arg("-I")
        .arg(crate_path("include"))
        .arg(crate_path(source))
        .args(["-x", "none"])
        .arg("-o")
        .arg(&path)
        .arg("-L")
        .arg(libraries)
        .args([search.as_str(), "-lgpreempt", "-lpthread", "-ldl"])
        .output()
        .expect("a compiler for C");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {source}: {errors}");
    Program { path, folder }
}

impl Program {
    /// The program as a command, without a daemon.
    pub(crate) fn alone(&self) -> Command {
        let mut command = Command::new(&self.path);
        self.shield(&mut command);
        command
    }

    /// The program as a command, beside a load that a daemon schedules.
    pub(crate) fn within(&self, scene: &ScheduledLoad) -> Command {
        let mut command = Command::new(&self.path);
        scene.show_to(&mut command);
        command
    }

    /// The same under valgrind. None, and a word about it, if there is no valgrind.
    pub(crate) fn under_valgrind(
        &self,
        tool: &[&str],
        scene: Option<&ScheduledLoad>,
    ) -> Option<Command> {
        if Command::new("valgrind").arg("--version").output().is_err() {
            println!("SKIPPED: valgrind is missing; to run this: apt-get install valgrind");
            return None;
        }
        let mut command = Command::new("valgrind");
        command.arg("-q").args(tool).arg(&self.path);
        match scene {
            Some(scene) => scene.show_to(&mut command),
            None => self.shield(&mut command),
        }
        Some(command)
    }

    fn shield(&self, command: &mut Command) {
        // No daemon of this machine is to be found.
        command.env("GPREEMPT_SOCKET", self.folder.path("nobody.sock"));
        command.env_remove("GPREEMPT_EMULATED_SOCKET");
    }

    /// A place for files of the program.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }
}

/// Runs a command that has to succeed. What it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", told(&output));
    assert!(output.stderr.is_empty(), "{command:?}: {}", told(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a program said.
pub(crate) fn told(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{out}\n{err}", output.status)
}

/// The files in a folder of this crate that are programs.
pub(crate) fn sources(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(crate_path(folder)).unwrap();
    let mut sources: Vec<String> = entries
        .map(|entry| format!("{folder}/{}", entry.unwrap().file_name().display()))
        .filter(|source| source.ends_with(".c"))
        .collect();
    sources.sort();
    sources
}
