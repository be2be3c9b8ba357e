//! `cargo xtask python`: the Python package, installed into an environment of its own, type-checked
//! and tested against the real library, daemon and emulated GPU.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::packages::{self, Package};
use crate::process::{build_programs, cargo, repository_root, run, run_to_success};
use crate::step::Outcome;

/// Makes environments; Debian keeps this part of Python in a package of its own.
const PYTHON_VENV: Package = Package {
    name: "python3-venv",
    program: "python3",
    needed_by: "the test of the Python package",
};

/// The oldest Python that the package promises to run on.
const OLDEST: &str = "import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))";

/// Far more than the tests take; they bound each of their own waits.
const TESTS_SECONDS_MAX: &str = "600";

pub(crate) fn check() -> Outcome {
    if !is_there() {
        packages::install_one(PYTHON_VENV);
    }
    if !is_there() {
        let reason = "Python 3.9 or newer with venv is missing; to run this: apt-get install";
        return Outcome::Skipped(format!("{reason} {}", PYTHON_VENV.name));
    }
    match test_package() {
        Ok(true) => Outcome::Passed,
        Ok(false) => Outcome::Skipped("pip cannot install pytest and mypy; see above".to_owned()),
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

/// Whether there is a Python that can do what is needed.
pub(crate) fn is_there() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", OLDEST]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Builds the library and the programs that the tests start, and says in which folder they are.
pub(crate) fn build_library_and_programs() -> anyhow::Result<PathBuf> {
    run_to_success(&mut cargo(["build", "--release", "--package=gpreempt-agent", "--lib"]))?;
    build_programs()
}

/// Builds, installs, checks and tests. False if the tools for it cannot be had.
fn test_package() -> anyhow::Result<bool> {
    let folder = &build_library_and_programs()?;
    let environment = Environment::make(&folder.join("python"))?;
    if !environment.install_tools()? {
        return Ok(false);
    }
    environment.install_package()?;
    environment.check_types()?;
    environment.check_manifest()?;
    environment.run_tests(folder)?;
    Ok(true)
}

/// A Python environment of its own: nothing of the machine's Python is changed.
struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// A new one; what an earlier run left is cleared.
    fn make(folder: &Path) -> anyhow::Result<Self> {
        let mut python = Command::new("python3");
        run_to_success(python.args(["-m", "venv", "--clear"]).arg(folder))?;
        Ok(Self { folder: folder.to_path_buf() })
    }

    /// Whether the tools of the tests could be installed; a machine without a network has none.
    fn install_tools(&self) -> anyhow::Result<bool> {
        let mut pip = self.pip(["install", "--quiet", "pytest", "mypy", "setuptools", VALIDATOR]);
        // For the tests of `gpreempt.asgi`.
        Ok(run(pip.args(["uvicorn", "websockets", "hypercorn", "starlette"]))?.success())
    }

    fn install_package(&self) -> anyhow::Result<()> {
        // Setuptools builds in there, and a module that was removed since would come along.
        match fs::remove_dir_all(repository_root().join("python/build")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        run_to_success(&mut self.pip(["install", "--quiet", "--force-reinstall", "./python"]))
    }

    fn check_types(&self) -> anyhow::Result<()> {
        let mut mypy = self.module("mypy");
        mypy.args(["--strict", "--no-incremental"]);
        run_to_success(mypy.args(["--config-file", "python/pyproject.toml"]).args(TYPED))
    }

    /// Compares the examples for Kubernetes with the schema of its API, also with the patch that
    /// makes the container a privileged one. The tool for it is a Python package, so it is done
    /// here.
    fn check_manifest(&self) -> anyhow::Result<()> {
        let patched = self.folder.join("privileged-daemonset.yaml");
        let mut patch = Command::new(self.python());
        patch.args(["-c", PATCH, MANIFEST, MANIFEST_PATCH]).arg(&patched);
        run_to_success(&mut patch)?;
        let mut validate = Command::new(self.folder.join("bin").join(VALIDATOR));
        validate.args(["--strict", MANIFEST, "deploy/kubernetes/networkpolicy.yaml"]);
        run_to_success(validate.arg(patched))
    }

    fn run_tests(&self, programs: &Path) -> anyhow::Result<()> {
        let mut pytest = Command::new("timeout");
        pytest.arg(TESTS_SECONDS_MAX).arg(self.python());
        // No cache and no bytecode: the tree stays as it is.
        pytest.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "python/tests"]);
        pytest.env("GPREEMPT_BIN", programs).env_remove("GPREEMPT_LIBRARY");
        run_to_success(&mut pytest)
    }

    fn pip<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut pip = self.module("pip");
        pip.arg("--disable-pip-version-check").args(args);
        pip
    }

    fn module(&self, name: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(self.python());
        command.arg("-m").arg(name);
        command
    }

    fn python(&self) -> PathBuf {
        self.folder.join("bin").join("python")
    }
}

const VALIDATOR: &str = "kubernetes-validate";

const MANIFEST: &str = "deploy/kubernetes/daemonset.yaml";
const MANIFEST_PATCH: &str = "deploy/kubernetes/privileged.yaml";

/// Applies a patch to the DaemonSet as `kubectl patch` does: null removes, and items of lists are
/// told apart by their names. The validator has PyYAML installed.
const PATCH: &str = r#"
import sys
import yaml

def merge(target, patch):
    for key, value in patch.items():
        if value is None:
            del target[key]
        elif isinstance(value, dict):
            merge(target[key], value)
        elif isinstance(value, list):
            for item in value:
                known = [own for own in target[key] if own["name"] == item["name"]]
                merge(known[0], item) if known else target[key].append(item)
        else:
            target[key] = value

manifest, patch, out = sys.argv[1:]
documents = list(yaml.safe_load_all(open(manifest)))
[daemon_set] = [document for document in documents if document["kind"] == "DaemonSet"]
merge(daemon_set, yaml.safe_load(open(patch)))
[container] = daemon_set["spec"]["template"]["spec"]["containers"]
assert container["securityContext"] == {
    "privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True
}, container["securityContext"]
yaml.safe_dump_all(documents, open(out, "w"))
"#;

const TYPED: &[&str] = &["python/src", "python/tests", "examples"];
